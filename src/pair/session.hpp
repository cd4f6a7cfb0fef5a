// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>
#include <aisp/threads.hpp>

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/system/files.hpp"
#include "pair/launch_state.hpp"
#include "pair/memory/memory.hpp"
#include "pair/ranks.hpp"
#include "pair/sizes.hpp"
#include "pair/sm_part.hpp"

namespace aisp::pair {

struct SessionOptions {
  std::vector<int> gpus;  // CUDA ordinals; empty for host pairs
  std::uint64_t seed = 42;
  double scale = 1;
  SizeMap sizes;  // set by --size
  bool small_shape = false;
  bool reproducible = false;
  bool red_zones = true;
  std::filesystem::path scratch_parent;
  RankGroup* ranks = nullptr;  // the pair's processes; null: this one alone
};

// Returns how samples of the pair that was set up last find the cache; cold before the first.
Cache present_cache();

// One pair set up in this process: its workload and all its resources.
class Session final : public Setup {
 public:
  Session(const Pair& pair, SessionOptions options);
  ~Session();

  const Pair& pair() const { return pair_; }
  Workload& workload() { return *workload_; }
  LaunchState& launch() { return launch_; }
  RankGroup& rank_group() { return options_.ranks != nullptr ? *options_.ranks : alone_; }
  bool on_gpu() const { return pair_.device == Device::gpu; }
  const std::vector<int>& gpu_ordinals() const { return options_.gpus; }
  std::uint64_t seed() const { return seed_; }

  // Renews all inputs, inouts and files; poisons outputs and workspace.
  void refill(std::uint64_t seed);
  // Renews the inputs that `prepare` must not depend on; the rest stays, files too.
  void refill_variable(std::uint64_t seed);
  // Puts other inputs (not inouts) in the place of the present ones until restore_inputs(), for steps that may not know them. A
  // function's contents are drawn once and are the same every time.
  void show_other_inputs();
  void restore_inputs();
  bool has_files() const { return !files_.empty(); }
  // Whether there are inputs, and none of them is ever renewed.
  bool only_constant_inputs() const;
  void restore_inouts();
  bool changes_state() const;  // has inouts
  void poison_outputs(int value);
  // Digest of all inputs and files: everything that no variant may change.
  std::uint64_t digest_inputs() const;
  // Restores the inputs (not files) as they were filled; returns false if they had changed.
  bool inputs_untouched();
  std::vector<std::string> damaged_red_zones() const;
  void paint_red_zones();

  // Returns outputs and inouts in the order of their declaration, and their memory.
  const std::vector<Buffer*>& results() const { return results_; }
  int gpu_of(const Buffer& buffer) const {
    return on_device(buffer) ? options_.gpus[static_cast<std::size_t>(buffer.device)] : -1;
  }
  // Allows a maker of new inputs to keep this much device memory once: Python's libraries keep what they have freed.
  void makers_of_inputs_keep(std::size_t bytes) { kept_by_makers_of_inputs_ += bytes; }
  std::size_t kept_by_makers_of_inputs() const { return kept_by_makers_of_inputs_; }

  Elements elements(const Buffer& buffer, std::size_t count) const;
  // Returns the tolerance of the variant's k-th result, and compares with it.
  Tolerance limits(const Variant& variant, std::size_t result) const;
  Norms compare(const Elements& x, const Elements& reference, const Buffer& buffer, const Tolerance& limits) const;

  double prepare(const Variant& variant);  // milliseconds
  void reset(const Variant& variant);      // restores inouts and runs the variant's reset; returns when all GPUs are idle
  // Queues the variant's run on all of the session's streams: those of further GPUs wait for the first one's, and it for them.
  // measure::Executor does everything else of an execution.
  void submit(const Variant& variant);
  // For workloads that choose the memory of their results: `collect` copies them to the outputs' buffers, after an execution and
  // outside its window.
  void collect_by(std::function<void(const Variant& submitted)> collect) { collect_ = std::move(collect); }
  void collect() const {
    if (collect_) collect_(*submitted_);
  }
  void synchronize_all();

  // While it lives, handles do not tell what inputs and files hold: the code of `variant` has to read them.
  // Constant inputs are no secret, and a control may know more than others, because no speedup is claimed for it.
  class Hidden {
   public:
    Hidden(Session& session, const Variant& variant);
    ~Hidden() { session_.hide(-more_); }
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;

   private:
    Session& session_;
    int more_;
  };
  // While it lives, the pair has other inputs.
  class OtherInputs {
   public:
    explicit OtherInputs(Session& session) : session_{session} { session.show_other_inputs(); }
    ~OtherInputs() { session_.restore_inputs(); }
    OtherInputs(const OtherInputs&) = delete;
    OtherInputs& operator=(const OtherInputs&) = delete;

   private:
    Session& session_;
  };

  const std::deque<Buffer>& buffers() const { return buffers_; }
  double bytes_written(const Variant& variant) const;  // lower bound in the first GPU's memory: the outputs that it writes

  const SizeMap& sizes() const { return sizes_; }  // in effect, of those that the pair declares

  std::uint64_t device_bytes() const;
  std::uint64_t host_bytes() const;

  // Setup
  Buffer& add(Role role, ElementType type, std::size_t element_bytes, std::size_t count, Pattern pattern,
              Function<void(void* host, std::uint64_t seed)> fill, const BufferOptions& options) override;
  FileInput file(const char* name, std::size_t bytes) override;
  std::size_t scaled(std::size_t full, std::size_t multiple) const override;
  std::size_t size(std::string_view name) const override;
  std::size_t shape(std::size_t full, std::size_t small) const override { return options_.small_shape ? small : full; }
  int gpus() const override { return static_cast<int>(options_.gpus.size()); }
  int device_ordinal(int gpu) const override { return options_.gpus.at(static_cast<std::size_t>(gpu)); }
  cudaStream_t stream(int gpu, bool urgent) override;
  SmStream stream_on(int sms, int gpu) override;
  cudaEvent_t event(int gpu) override;
  ThreadTeam& threads(int workers, bool pinned) override;
  int rank() const override { return options_.ranks != nullptr ? options_.ranks->rank() : 0; }
  int ranks() const override { return options_.ranks != nullptr ? options_.ranks->ranks() : 1; }
  int cpus() const override;
  FilePath scratch_directory() override;
  bool reproducible() const override { return options_.reproducible; }
  void when_needed(Library library, detail::LibraryObject& object) override;

 private:
  struct File {
    std::string path;
    std::size_t bytes;
    std::uint64_t seed;   // as FileInput sees it
    std::uint64_t drawn;  // of the present contents
  };
  void exchange(const void* own, std::size_t bytes, void* all) override;
  std::uint64_t seed_of(const Buffer& buffer, std::uint64_t seed) const;
  void fill(Buffer& buffer, std::uint64_t seed);
  void restore(Buffer& buffer);
  void copy_to(Buffer& buffer, const std::vector<std::byte>& contents);
  void draw_others(std::uint64_t seed);
  void show(Buffer& buffer);
  void hide(int more);
  std::uint64_t digest_input_buffers() const;
  void open_streams();
  void open_libraries(const Variant& variant);
  void fork();
  void join();
  void select_first_gpu() const;

  const Pair& pair_;
  SessionOptions options_;
  RankGroup alone_;
  SizeMap sizes_;
  std::uint64_t seed_ = 0;
  std::uint64_t inputs_seed_ = 0;  // of the inputs that are not constant
  int hidden_ = 0;                 // how many Hidden live
  bool others_drawn_ = false;
  std::uint64_t others_shown_ = 0;
  std::size_t kept_by_makers_of_inputs_ = 0;
  LaunchState launch_;
  std::vector<cudaStream_t> main_streams_;
  std::vector<cudaEvent_t> fork_join_events_;  // one per GPU
  std::vector<cudaStream_t> extra_streams_;
  SmParts sm_parts_;
  std::vector<cudaEvent_t> extra_events_;
  std::deque<Buffer> buffers_;
  std::vector<std::unique_ptr<Allocation>> allocations_;
  std::vector<Buffer*> results_;
  std::deque<File> files_;
  std::vector<std::unique_ptr<ThreadTeam>> teams_;
  std::vector<std::pair<Library, detail::LibraryObject*>> library_objects_;
  std::optional<base::ScratchDirectory> scratch_;  // removed even if the rest of the constructor fails
  std::unique_ptr<Workload> workload_;
  const Variant* submitted_ = nullptr;  // last
  std::function<void(const Variant&)> collect_;
};

// Makes `workers` threads, the caller of run() counted as worker 0. Pinned: worker i stays on the i-th CPU of the process's
// affinity mask (modulo their number), the caller during run() only.
std::unique_ptr<ThreadTeam> make_thread_team(int workers, bool pinned);

}  // namespace aisp::pair
