// SPDX-License-Identifier: Apache-2.0
// Six elementwise steps, written one array at a time, move 52 bytes an element through the memory system, because the arrays are
// larger than the caches of a core; the arithmetic is free. One loop moves the 12 bytes of the two inputs and the output. With
// all cores at work memory itself is the limit, and stores that bypass the caches save reading the output's lines first. All
// buffers ask for 2 MiB pages, so that the variants differ in their passes only.
#include <aisp/pair.hpp>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>

namespace aisp::ch01 {
namespace {

constexpr float half = 0.5f, one = 1.0f, lowest = 1.5f, three = 3.0f;

template <class T>
T at_least_lowest(T value) {
  return value < lowest ? T{lowest} : value;
}
#if defined(__SSE2__)
__m128 at_least_lowest(__m128 values) { return _mm_max_ps(values, _mm_set1_ps(lowest)); }
#endif

// The six steps on one element, or on a vector of elements. The bound comes last: arithmetic on the constant it may select would
// tempt compilers to branch, and a loop with branches is not vectorized.
template <class T>
T chain(T a, T b) {
  T t = a * b;
  t = t * half;
  t = t + one;
  t = t * t;
  t = three - t;
  return at_least_lowest(t);
}

// One pass of an array library, in place.
template <class Step>
void update(float* values, std::size_t count, Step step) {
  for (std::size_t i = 0; i < count; ++i) values[i] = step(values[i]);
}

void chain_of(const float* a, const float* b, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = chain(a[i], b[i]);
}

#if defined(__SSE2__)
// `count`: a multiple of 16; addresses aligned to 64 bytes. Four stores fill a cache line, which then leaves the core as one
// burst.
void chain_past_caches(const float* a, const float* b, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; i += 16)
    for (std::size_t part = i; part < i + 16; part += 4)
      _mm_stream_ps(out + part, chain<__m128>(_mm_load_ps(a + part), _mm_load_ps(b + part)));
  _mm_sfence();  // these stores are not ordered with later ones, such as the flag that says "done" to another thread
}
#else
void chain_past_caches(const float* a, const float* b, float* out, std::size_t count) { chain_of(a, b, out, count); }
#endif

class LoopFusion final : public Workload {
 public:
  explicit LoopFusion(Setup& setup)
      : count_{setup.size("elements")},
        a_{setup.input<float>(count_, uniform(-1, 1), {.huge_pages = true})},
        b_{setup.input<float>(count_, uniform(-1, 1), {.huge_pages = true})},
        out_{setup.output<float>(count_, {.huge_pages = true})},
        temporary_{setup.scratch<float>(count_, {.huge_pages = true})},
        team_{setup.threads(setup.cpus())} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return chain<double>(a_.host(index), b_.host(index)); }

  void array_at_a_time(Launch&) {
    float* const t = temporary_;
    for (std::size_t i = 0; i < count_; ++i) t[i] = a_[i] * b_[i];
    update(t, count_, [](float x) { return x * half; });
    update(t, count_, [](float x) { return x + one; });
    update(t, count_, [](float x) { return x * x; });
    update(t, count_, [](float x) { return three - x; });
    for (std::size_t i = 0; i < count_; ++i) out_[i] = at_least_lowest(t[i]);
  }

  void fused(Launch&) { chain_of(a_, b_, out_, count_); }

  // Slices are claimed, not dealt out: a core that was interrupted then delays the end by one slice at most.
  void fused_threads(Launch&) {
    constexpr std::size_t slice = std::size_t{1} << 16;
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t at; (at = next.fetch_add(slice, std::memory_order_relaxed)) < count_;)
        chain_past_caches(a_ + at, b_ + at, out_ + at, std::min(slice, count_ - at));
    });
  }

 private:
  std::size_t count_;
  Input<float> a_, b_;
  Output<float> out_;
  Scratch<float> temporary_;
  ThreadTeam& team_;
};

}  // namespace

extern constinit const Pair loop_fusion{
    .teaches = "array-at-a-time code is bound by its passes over memory; one loop makes a single pass",
    .lesson = "fused",
    .make = make<LoopFusion>,
    .baseline = {.name = "array_at_a_time", .run = call<&LoopFusion::array_at_a_time>},
    .optimized = variants({{.name = "fused", .run = call<&LoopFusion::fused>},
                           {.name = "fused_threads", .run = call<&LoopFusion::fused_threads>, .needs = {.cpus = 2}}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = within(1e-6, 1e-6),
    .sizes = sizes({{.name = "elements", .full = 8u << 20, .multiple = 16, .most = 1u << 28}}),
    .sweep = cases({{"kib_64", "elements=16384"},
                    {"kib_512", "elements=131072"},
                    {"mib_4", "elements=1048576"},
                    {"mib_16", "elements=4194304"}}),
    .reference_samples = std::size_t{8} << 20,
};

}  // namespace aisp::ch01
