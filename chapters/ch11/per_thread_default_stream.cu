// SPDX-License-Identifier: Apache-2.0
// Host threads that know nothing of one another each launch a chain of short kernels without naming a stream. The legacy default
// stream is one for the whole process, so the chains run one after the other on an eighth of the GPU. The per-thread default
// stream (cudaStreamPerThread, or nvcc --default-stream per-thread without a changed line) removes that false dependence. It
// still waits for the legacy stream, as the controls show; a stream made with cudaStreamNonBlocking does not.
#include <aisp/pair.hpp>

#include <cmath>
#include <complex>
#include <numbers>
#include <utility>
#include <vector>

namespace aisp::ch11 {
namespace {

constexpr unsigned samples = 1u << 16, taps = 4096;  // of a signal, which is a ring, and of a filter
constexpr unsigned steps = 16;
constexpr unsigned blocks = 16, block_samples = samples / blocks;
constexpr unsigned threads = 512, each = block_samples / threads;  // samples a thread
constexpr unsigned tap_group = 16;                                 // taps between two shifts of a thread's window
constexpr unsigned window = taps + block_samples;                  // samples that a block reads

// One 16-byte gap after every eight 16-byte words: threads read every second word, without bank conflicts.
__device__ constexpr unsigned padded(unsigned word) { return word + word / 8; }

constexpr std::size_t shared_bytes = (window / 4 + window / 32) * sizeof(float4) + taps * sizeof(float);

// out[i] is the sum of taps[t] * in[i + 1 + t - taps], around the ring: taps are stored in reverse.
__global__ __launch_bounds__(threads) void filter_kernel(const float* in, const float* reversed_taps, float* out) {
  extern __shared__ float4 shared[];
  float4* const signal = shared;
  auto* const filter = reinterpret_cast<float4*>(shared + window / 4 + window / 32);
  const unsigned first = blockIdx.x * block_samples;
  for (unsigned i = threadIdx.x; i < window / 4; i += threads)
    signal[padded(i)] = *reinterpret_cast<const float4*>(in + (first + samples - taps + i * 4) % samples);
  for (unsigned i = threadIdx.x; i < taps / 4; i += threads) filter[i] = reinterpret_cast<const float4*>(reversed_taps)[i];
  __syncthreads();

  float sums[each] = {}, values[each + tap_group];
  const auto load = [&](unsigned at, unsigned word) {
    const float4 v = signal[padded(threadIdx.x * each / 4 + word)];
    values[at] = v.x, values[at + 1] = v.y, values[at + 2] = v.z, values[at + 3] = v.w;
  };
#pragma unroll
  for (unsigned i = 0; i < each; i += 4) load(i, i / 4);
  for (unsigned t = 0; t < taps; t += tap_group) {
#pragma unroll
    for (unsigned i = 0; i < tap_group; i += 4) {
      load(each + i, (t + each + i) / 4);
      const float4 tap = filter[(t + i) / 4];
#pragma unroll
      for (unsigned k = 0; k < each; ++k) {
        sums[k] = fmaf(tap.x, values[i + k + 1], sums[k]);
        sums[k] = fmaf(tap.y, values[i + k + 2], sums[k]);
        sums[k] = fmaf(tap.z, values[i + k + 3], sums[k]);
        sums[k] = fmaf(tap.w, values[i + k + 4], sums[k]);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < each; ++i) values[i] = values[tap_group + i];
  }
#pragma unroll
  for (unsigned k = 0; k < each; k += 4)
    *reinterpret_cast<float4*>(out + first + threadIdx.x * each + k) =
        make_float4(sums[k], sums[k + 1], sums[k + 2], sums[k + 3]);
}

__global__ void empty_kernel() {}

using Complex = std::complex<double>;

// In place, of a power of two; `sign` -1 forward, 1 backward without the division.
void fourier(std::vector<Complex>& v, int sign) {
  const std::size_t n = v.size();
  for (std::size_t i = 1, j = 0; i < n; ++i) {
    std::size_t bit = n / 2;
    for (; (j & bit) != 0; bit /= 2) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(v[i], v[j]);
  }
  std::vector<Complex> roots(n / 2);
  for (std::size_t k = 0; k < n / 2; ++k)
    roots[k] = std::polar(1.0, sign * 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n));
  for (std::size_t half = 1; half < n; half *= 2)
    for (std::size_t i = 0; i < n; i += 2 * half)
      for (std::size_t k = 0; k < half; ++k) {
        const Complex odd = v[i + half + k] * roots[k * (n / 2 / half)];
        v[i + half + k] = v[i + k] - odd;
        v[i + k] += odd;
      }
}

class PerThreadDefaultStream final : public Workload {
 public:
  explicit PerThreadDefaultStream(Setup& setup)
      : chains_{setup.size("threads")},
        gpu_{setup.device_ordinal(0)},
        in_{setup.input<float>(chains_ * samples, uniform(-1, 1), {.name = "signals"})},
        taps_{setup.input<float>(taps, normal(0, 1.0f / 64), {.name = "taps"})},
        out_{setup.output<float>(chains_ * samples, {.name = "filtered"})},
        between_{setup.scratch<float>(chains_ * 2 * samples)},
        team_{setup.threads(static_cast<int>(chains_))},
        forked_{setup.event()} {
    for (std::size_t chain = 0; chain < chains_; ++chain) {
      own_streams_.push_back(setup.stream());
      done_.push_back(setup.event());
    }
    allow_shared_memory(filter_kernel, shared_bytes);
  }

  Cost cost() const override { return {.flops = 2.0 * taps * samples * steps * static_cast<double>(chains_)}; }

  // A filter around a ring multiplies the spectrum, so that all steps are a power: no sum of the kernel's is repeated here.
  void compute_reference(Launch&) override {
    std::vector<Complex> filter(samples);
    for (unsigned t = 0; t < taps; ++t) filter[taps - 1 - t] = taps_.host(t);
    fourier(filter, -1);
    reference_.resize(chains_ * samples);
    for (std::size_t chain = 0; chain < chains_; ++chain) {
      std::vector<Complex> signal(samples);
      for (unsigned i = 0; i < samples; ++i) signal[i] = in_.host(chain * samples + i);
      fourier(signal, -1);
      for (unsigned i = 0; i < samples; ++i) signal[i] *= std::pow(filter[i], static_cast<int>(steps));
      fourier(signal, 1);
      for (unsigned i = 0; i < samples; ++i) reference_[chain * samples + i] = signal[i].real() / samples;
    }
  }
  double expected(std::size_t index) const override { return reference_[index]; }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("chains", static_cast<double>(chains_), "chains/s");
  }

  void legacy_stream(Launch& launch) {
    on_threads(launch, [](std::size_t) { return cudaStreamLegacy; });
  }
  void per_thread(Launch& launch) {
    on_threads(launch, [](std::size_t) { return cudaStreamPerThread; });
  }
  void nonblocking_streams(Launch& launch) {
    on_threads(launch, [this](std::size_t chain) { return own_streams_[chain]; });
  }
  void one_thread(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    for (std::size_t chain = 0; chain < chains_; ++chain) queue(chain, cudaStreamLegacy);
    join(launch);
  }
  void per_thread_legacy_call(Launch& launch) {
    calls_legacy_ = true;
    per_thread(launch);
    calls_legacy_ = false;
  }
  void nonblocking_legacy_call(Launch& launch) {
    calls_legacy_ = true;
    nonblocking_streams(launch);
    calls_legacy_ = false;
  }

 private:
  template <class StreamOf>
  void on_threads(Launch& launch, const StreamOf& stream_of) {
    check(cudaEventRecord(forked_, launch.stream));
    team_.run([&](int worker) {
      check(cudaSetDevice(gpu_));
      queue(static_cast<std::size_t>(worker), stream_of(static_cast<std::size_t>(worker)));
    });
    join(launch);
  }
  void queue(std::size_t chain, cudaStream_t stream) {
    check(cudaStreamWaitEvent(stream, forked_));
    const float* from = in_ + chain * samples;
    for (unsigned step = 0; step < steps; ++step) {
      // One careless call, by one of the threads.
      if (calls_legacy_ && chain == 0 && step % 4 == 0) launch_kernel(cudaStreamLegacy, empty_kernel, {1, 1});
      float* const to = step + 1 == steps ? out_ + chain * samples : between_ + (chain * 2 + step % 2) * samples;
      launch_kernel(stream, filter_kernel, {blocks, threads, shared_bytes}, from, taps_, to);
      from = to;
    }
    check(cudaEventRecord(done_[chain], stream));
  }
  void join(Launch& launch) {
    for (const cudaEvent_t done : done_) check(cudaStreamWaitEvent(launch.stream, done));
  }

  std::size_t chains_;
  int gpu_;
  Input<float> in_, taps_;
  Output<float> out_;
  Scratch<float> between_;
  ThreadTeam& team_;
  cudaEvent_t forked_;
  std::vector<cudaStream_t> own_streams_;
  std::vector<cudaEvent_t> done_;
  bool calls_legacy_ = false;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair per_thread_default_stream{
    .teaches = "the legacy default stream puts all threads of a process in one line; the per-thread default stream does not",
    .lesson = "per_thread",
    .make = make<PerThreadDefaultStream>,
    .baseline = {.name = "legacy_stream", .run = call<&PerThreadDefaultStream::legacy_stream>},
    .optimized =
        variants({{.name = "per_thread", .run = call<&PerThreadDefaultStream::per_thread>, .same_bits_as = "legacy_stream"},
                  {.name = "nonblocking_streams",
                   .run = call<&PerThreadDefaultStream::nonblocking_streams>,
                   .same_bits_as = "legacy_stream"}}),
    .controls =
        variants({{.name = "one_thread", .run = call<&PerThreadDefaultStream::one_thread>, .same_bits_as = "legacy_stream"},
                  {.name = "per_thread_legacy_call",
                   .run = call<&PerThreadDefaultStream::per_thread_legacy_call>,
                   .same_bits_as = "legacy_stream"},
                  {.name = "nonblocking_legacy_call",
                   .run = call<&PerThreadDefaultStream::nonblocking_legacy_call>,
                   .same_bits_as = "legacy_stream"}}),
    .bound = Bound::latency,
    // A step's sum of 4096 products in turn is off by 1.1e-6 of itself, and sixteen steps by four times that.
    .tolerance = within(1e-5),
    .needs = {.cpus = 8},
    .start = Start::immediate,  // the threads' launches are the subject
    .timeline = true,
    .sizes = sizes({{.name = "threads", .full = 8, .most = 16, .scales = false}}),
    .sweep = cases({{"threads_1", "threads=1"},
                    {"threads_2", "threads=2"},
                    {"threads_4", "threads=4"},
                    {"threads_8", "threads=8"},
                    {"threads_16", "threads=16"}}),
    .edges = cases({{"one_thread", "threads=1"}}),
};

}  // namespace aisp::ch11
