// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>
#include <aisp/buffers.hpp>
#include <aisp/needs.hpp>
#include <aisp/threads.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace aisp {

// A path whose text lives as long as the workload; it converts to std::filesystem::path, which this header does not bring.
class FilePath {
 public:
  explicit FilePath(const char* text) : text_{text} {}
  const char* c_str() const { return text_; }
  operator const char*() const { return text_; }
  template <class Path>
  requires requires { typename Path::string_type; }
  operator Path() const { return Path(text_); }

 private:
  const char* text_;
};

namespace detail {
// Returns a file's eight bytes at offset 8 * index. Two rounds, because one can be run backwards: no word tells the seed.
constexpr std::uint64_t file_word(std::uint64_t seed, std::uint64_t index) {
  return random_bits(seed ^ random_bits(seed, index), ~index);
}
}  // namespace detail

// A file the harness writes before the pair runs and again with every new seed, and removes afterwards. Expected results need no
// read: word() returns its bytes, eight at a time, little endian. It throws while a variant runs, which has to read them.
class FileInput {
 public:
  FileInput(FilePath path, std::size_t bytes, const std::uint64_t* seed) : path_{path}, bytes_{bytes}, seed_{seed} {}
  FilePath path() const { return path_; }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t word(std::size_t index) const {  // 8 bytes at offset 8 * index
    if (*seed_ == hidden) detail::throw_contents_are_hidden();
    return detail::file_word(*seed_, index);
  }
  static constexpr std::uint64_t hidden = 0;  // a seed that no file has

 private:
  FilePath path_;
  std::size_t bytes_;
  const std::uint64_t* seed_;
};

namespace detail {

// An object of a library that the harness makes before a variant that needs it; Opened (opened.hpp) is made of it.
class LibraryObject {
 public:
  virtual ~LibraryObject() = default;
  virtual void open() = 0;
};

// Fills a buffer's memory by a function of its elements.
template <class T>
struct FillElements {
  HostFill<T> fill;
  std::size_t count;
  void operator()(void* host, std::uint64_t seed) const { fill(std::span<T>{static_cast<T*>(host), count}, seed); }
};

}  // namespace detail

struct SmStream {
  cudaStream_t stream = nullptr;
  int sms = 0;  // SMs on which its kernels run
};

// The argument of a workload's constructor: registered buffers, files, streams and threads, all freed by the harness, and the
// sizes to use.
class Setup {
 public:
  template <class T>
  Input<T> input(std::size_t count, Pattern pattern, BufferOptions options = {}) {
    return Input<T>{add(Role::input, element_type<T>(), sizeof(T), count, pattern, {}, options)};
  }
  template <class T>
  Input<T> input(std::size_t count, HostFill<T> fill, BufferOptions options = {}) {
    return Input<T>{
        add(Role::input, element_type<T>(), sizeof(T), count, {}, detail::FillElements<T>{std::move(fill), count}, options)};
  }
  template <class T>
  InOut<T> inout(std::size_t count, Pattern pattern, BufferOptions options = {}) {
    return InOut<T>{add(Role::inout, element_type<T>(), sizeof(T), count, pattern, {}, options)};
  }
  template <class T>
  InOut<T> inout(std::size_t count, HostFill<T> fill, BufferOptions options = {}) {
    return InOut<T>{
        add(Role::inout, element_type<T>(), sizeof(T), count, {}, detail::FillElements<T>{std::move(fill), count}, options)};
  }
  template <class T>
  Output<T> output(std::size_t count, BufferOptions options = {}) {
    return Output<T>{add(Role::output, element_type<T>(), sizeof(T), count, {}, {}, options)};
  }
  template <class T>
  Scratch<T> scratch(std::size_t count, BufferOptions options = {}) {
    return Scratch<T>{add(Role::scratch, element_type<T>(), sizeof(T), count, {}, {}, options)};
  }
  virtual FileInput file(const char* name, std::size_t bytes) = 0;

  // `full` times the scale of this run (device memory and --scale), rounded down to a multiple of `multiple`, at least one
  // multiple.
  virtual std::size_t scaled(std::size_t full, std::size_t multiple = 1) const = 0;
  // A size that the pair declares in .sizes: the value of --size, else its full size times the scale of this run.
  virtual std::size_t size(std::string_view name) const = 0;
  // `full` in timed runs; `small` while a pair with Verification::small_shape is compared with its float64 reference.
  virtual std::size_t shape(std::size_t full, std::size_t small) const = 0;

  virtual int gpus() const = 0;                                       // GPUs given to this pair; 0 for host pairs
  virtual int device_ordinal(int gpu) const = 0;                      // CUDA ordinal of the pair's i-th GPU
  virtual cudaStream_t stream(int gpu = 0, bool urgent = false) = 0;  // a further non-blocking stream, owned by the harness
  // A further stream, owned by the harness, whose kernels run on `sms` SMs of the GPU or a few more: chips partition SMs in
  // groups. No two such streams share an SM; all other streams still use all SMs. Throws Unsupported if the driver cannot do it
  // (before CUDA 12.5) or too few SMs are left.
  virtual SmStream stream_on(int sms, int gpu = 0) = 0;
  virtual cudaEvent_t event(int gpu = 0) = 0;                        // without timing, owned by the harness
  virtual ThreadTeam& threads(int workers, bool pinned = true) = 0;  // live until the workload is gone
  // A pair that .needs ranks has a workload in each of their processes, and all of them make the same calls. Seeds of inputs are
  // the same in all ranks: inputs that are parts of a whole are filled by the index in the whole (Pattern::from), and references
  // and outputs are those of the rank's own part.
  virtual int rank() const = 0;   // 0 to ranks() - 1
  virtual int ranks() const = 0;  // 1 for other pairs
  // Gives `own` to all ranks and returns when all have called it; all[i], of as many as there are ranks, is that of rank i. For
  // ids and decisions, in constructors and `prepare`: it takes tens of microseconds.
  template <class T>
  void exchange(const T& own, T* all) {
    static_assert(__is_trivially_copyable(T), "ranks exchange bytes");
    exchange(&own, sizeof(T), all);
  }

  virtual int cpus() const = 0;              // CPUs this process may use
  virtual FilePath scratch_directory() = 0;  // removed with the workload
  virtual bool reproducible() const = 0;     // choose deterministic algorithms, or throw Unsupported
  // Opens `object`, which lives as long as the workload, before each prepare of a variant that needs the library.
  virtual void when_needed(Library library, detail::LibraryObject& object) = 0;

 protected:
  ~Setup() = default;

 private:
  virtual void exchange(const void* own, std::size_t bytes, void* all) = 0;
  virtual BufferView& add(Role role, ElementType type, std::size_t element_bytes, std::size_t count, Pattern pattern,
                          Function<void(void* host, std::uint64_t seed)> fill, const BufferOptions& options) = 0;
};

}  // namespace aisp
