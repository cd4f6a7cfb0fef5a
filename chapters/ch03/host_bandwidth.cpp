// SPDX-License-Identifier: Apache-2.0
// Staging buffers are copied on the host before they reach a GPU. One core can wait for a few dozen cache lines at a time, which
// is far from what the memory channels deliver, and a store into a line that is not cached reads the line first. Stores that
// bypass the caches save that read; all cores together fill the channels. Both buffers ask for 2 MiB pages, so that the copies
// are not held up by address translation and the variants differ in how they move bytes only.
#include <aisp/pair.hpp>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <atomic>
#include <cstring>

namespace aisp::ch03 {
namespace {

// One huge page, and long enough for the hardware's prefetchers; short enough for sixteen cores to share 256 MiB evenly.
constexpr std::size_t slice_bytes = std::size_t{2} << 20;

#if defined(__SSE2__)
// Four stores fill one 64-byte line: back to back they leave the core as one burst, and nothing is read for them.
void copy_line(__m128i* to, const __m128i* from) {
  const __m128i a = _mm_load_si128(from), b = _mm_load_si128(from + 1);
  const __m128i c = _mm_load_si128(from + 2), d = _mm_load_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}
#endif

// `bytes`: a multiple of 128; both addresses aligned to 16 bytes.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  // Both halves at once: the prefetchers follow two streams and keep more reads in flight than for one.
  const std::size_t half = bytes / sizeof(__m128i) / 2;
  for (std::size_t i = 0; i < half; i += 4) {
    copy_line(out + i, in + i);
    copy_line(out + half + i, in + half + i);
  }
  _mm_sfence();  // these stores are not ordered with later ones, such as the flag that says "done" to another thread
#else
  std::memcpy(to, from, bytes);  // a portable stand-in: only the use of all cores is left to show
#endif
}

class HostBandwidth final : public Workload {
 public:
  explicit HostBandwidth(Setup& setup)
      : count_{setup.size("words")},
        in_{setup.input<std::uint32_t>(count_, integers(0, 0xFFFFFFFF), {.huge_pages = true})},
        out_{setup.output<std::uint32_t>(count_, {.huge_pages = true})},
        team_{setup.threads(setup.cpus())} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override { return in_.host(index); }

  void memcpy_one_thread(Launch&) { std::memcpy(out_.get(), in_.get(), in_.bytes()); }

  void streaming_stores(Launch&) { copy_past_caches(target(), source(), in_.bytes()); }

  // Slices are claimed, not dealt out: a core that was interrupted then delays the end by one slice at most.
  void all_channels(Launch&) {
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t at; (at = next.fetch_add(slice_bytes, std::memory_order_relaxed)) < in_.bytes();)
        copy_past_caches(target() + at, source() + at, slice_bytes);
    });
  }

 private:
  std::byte* target() const { return reinterpret_cast<std::byte*>(out_.get()); }
  const std::byte* source() const { return reinterpret_cast<const std::byte*>(in_.get()); }

  std::size_t count_;
  Input<std::uint32_t> in_;
  Output<std::uint32_t> out_;
  ThreadTeam& team_;
};

}  // namespace

extern constinit const Pair host_bandwidth{
    .teaches =
        "one core has too few outstanding misses to fill the memory channels, and cached stores read each line before "
        "writing it",
    .lesson = "all_channels",
    .make = make<HostBandwidth>,
    .baseline = {.name = "memcpy", .run = call<&HostBandwidth::memcpy_one_thread>},
    .optimized = variants(
        {{.name = "streaming_stores", .run = call<&HostBandwidth::streaming_stores>},
         {.name = "all_channels", .run = call<&HostBandwidth::all_channels>, .needs = {.cpus = 2}, .gains_over = "memcpy"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "words", .full = 1u << 26, .multiple = slice_bytes / sizeof(std::uint32_t), .most = 1u << 30}}),
    .sweep = cases(
        {{"mib_2", "words=524288"}, {"mib_8", "words=2097152"}, {"mib_32", "words=8388608"}, {"mib_128", "words=33554432"}}),
};

}  // namespace aisp::ch03
