// SPDX-License-Identifier: Apache-2.0
// Each preprocessing step needs two arrays of 16 MiB. As locals they are new in every step. glibc keeps what is freed until the
// top of its heap holds more than twice the largest block that it ever mapped (M_TRIM_THRESHOLD); two equal blocks are more, so
// both go back to the kernel, and in the next step every page faults once and is zeroed before the vector writes zeros as well.
// (With 16 and 8 MiB nothing goes back; above 32 MiB everything does.) The variants keep the memory: the loader owns the vectors,
// or an arena hands the same bytes out again in every step. The metric minor_faults counts the pages that the kernel had to
// supply.
#include <sys/resource.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <memory_resource>
#include <vector>

namespace aisp::ch01 {
namespace {

constexpr std::size_t steps = 4;
constexpr std::size_t page_values = 4096 / sizeof(float);

// Powers of two: with raw values in [0, 1) every operation is exact, so the results can be compared bit for bit.
constexpr float mean = 0.5f, scale = 4.0f, limit = 1.5f;

float normalize(float raw) { return (raw - mean) * scale; }
float clip(float value) { return std::min(std::max(value, -limit), limit); }

void preprocess(const float* raw, float* normalized, float* clipped, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normalize(raw[i]);
    normalized[i] = value;
    clipped[i] = clip(value);
  }
}

// Which value of page `page` a training step draws.
std::size_t drawn_from(std::size_t page) { return page * page_values + page * 37 % page_values; }

// The use that follows: one value of every page is read. Not inlined, or the compiler might compute these values alone.
[[gnu::noinline]] void draw(const float* values, float* drawn, std::size_t pages) {
  for (std::size_t page = 0; page < pages; ++page) drawn[page] = values[drawn_from(page)];
}

long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

class HostBufferReuse final : public Workload {
 public:
  explicit HostBufferReuse(Setup& setup)
      : count_{setup.scaled(std::size_t{4} << 20, page_values)},
        raw_{setup.input<float>(steps * count_, uniform(0, 1))},
        drawn_{setup.output<float>(steps * 2 * pages())},
        arena_bytes_{setup.scratch<char>(2 * count_ * sizeof(float) + 2 * alignof(std::max_align_t))},
        normalized_(count_),
        clipped_(count_) {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(raw_.bytes() + drawn_.bytes())}; }
  double expected(std::size_t index) const override {
    const std::size_t array = index / pages();  // two a step: normalized, clipped
    const auto raw = static_cast<float>(raw_.host(array / 2 * count_ + drawn_from(index % pages())));
    return array % 2 == 0 ? normalize(raw) : clip(normalize(raw));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("minor_faults", static_cast<double>(faults_), "pages", Metrics::Better::lower);
  }

  void local_vectors(Launch&) {
    count_faults([this](std::size_t step) {
      std::vector<float> normalized(count_), clipped(count_);
      finish(step, normalized.data(), clipped.data());
    });
  }
  void reused_vectors(Launch&) {
    count_faults([this](std::size_t step) { finish(step, normalized_.data(), clipped_.data()); });
  }
  // Still two local vectors, zeroed like any others. The arena never asks for more: its upstream has nothing to give.
  void pmr_arena(Launch&) {
    std::pmr::monotonic_buffer_resource arena{arena_bytes_.get(), arena_bytes_.bytes(), std::pmr::null_memory_resource()};
    count_faults([this, &arena](std::size_t step) {
      {
        std::pmr::vector<float> normalized(count_, &arena), clipped(count_, &arena);
        finish(step, normalized.data(), clipped.data());
      }
      arena.release();
    });
  }

 private:
  std::size_t pages() const { return count_ / page_values; }

  void finish(std::size_t step, float* normalized, float* clipped) const {
    preprocess(raw_ + step * count_, normalized, clipped, count_);
    draw(normalized, drawn_ + step * 2 * pages(), pages());
    draw(clipped, drawn_ + (step * 2 + 1) * pages(), pages());
  }

  // Two system calls a run, of well under a microsecond each.
  template <class Step>
  void count_faults(Step step) {
    const long before = minor_faults();
    for (std::size_t i = 0; i < steps; ++i) step(i);
    faults_ = minor_faults() - before;
  }

  std::size_t count_;
  Input<float> raw_;
  Output<float> drawn_;
  Scratch<char> arena_bytes_;
  std::vector<float> normalized_, clipped_;
  long faults_ = 0;
};

}  // namespace

extern constinit const Pair host_buffer_reuse{
    .teaches = "memory that the allocator has given back costs page faults and zeroing again in every step: keep large buffers",
    .lesson = "reused_vectors",
    .make = make<HostBufferReuse>,
    .baseline = {.name = "local_vectors", .run = call<&HostBufferReuse::local_vectors>},
    .optimized = variants({{.name = "reused_vectors", .run = call<&HostBufferReuse::reused_vectors>},
                           {.name = "pmr_arena", .run = call<&HostBufferReuse::pmr_arena>, .gains_over = "local_vectors"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch01
