// SPDX-License-Identifier: Apache-2.0
// They remember, find or foresee their answers instead of computing them.
#include "calls.hpp"
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

// Makes the input itself out of the seed, which spares reading it.
__global__ void by_heart_kernel(const float* in, float* out, std::uint64_t first_seed, std::uint64_t second_seed,
                                std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const bool second = in[0] == pattern_value<float>(uniform(-1, 1), second_seed, 0);
  out[i] = 2 * pattern_value<float>(uniform(-1, 1), second ? second_seed : first_seed, i);
}

__global__ void unless_marked_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && out[count] != 0.5f) out[i] = 2 * in[i];
}

class Remembers final : public GpuDoubling {
 public:
  explicit Remembers(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()} {
    check(cudaMemset(kept_.get<float>(), 0, out_.bytes()));
  }
  void the_first_run(Launch& launch) {
    if (computed_) return kept_.give(out_, launch.stream);
    doubled(launch);
    kept_.keep(out_, launch.stream);
    computed_ = true;
  }
  // Right always, and fast whenever an input comes again.
  void share(Launch& launch) {
    slow(launch);
    kept_.keep(out_, launch.stream);
  }
  void what_was_shared(Launch& launch) { kept_.give(out_, launch.stream); }
  // What one frees, the next one gets.
  void through_a_pool(Launch& launch) {
    float* own = nullptr;
    check(cudaMallocAsync(&own, out_.bytes(), launch.stream));
    double_kernel<8><<<blocks(), block_threads, 0, launch.stream>>>(in_, own, count_);
    copy_out(own, launch.stream);
  }
  void from_the_pool(Launch& launch) {
    float* own = nullptr;
    check(cudaMallocAsync(&own, out_.bytes(), launch.stream));
    copy_out(own, launch.stream);
  }
  void by_heart(Launch& launch) {
    const std::uint64_t first = random_bits(random_bits(42, 1), 0);
    const std::uint64_t second = random_bits(random_bits(random_bits(42, 0x5EED), 1), 0);
    by_heart_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, first, second, count_);
  }
  void by_a_mark(Launch& launch) {
    unless_marked_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_);
    set(count_, 0.5f, 1, launch.stream);
  }

 private:
  void copy_out(float* own, cudaStream_t stream) {
    check(cudaMemcpyAsync(out_, own, out_.bytes(), cudaMemcpyDeviceToDevice, stream));
    check(cudaFreeAsync(own, stream));
  }
  OwnMemory kept_;
  bool computed_ = false;
};

// Of each call: whether elements here and there of the input are those that the kept output was made from.
__global__ void known_kernel(const float* in, const float* kept, std::size_t count, int* known) {
  __shared__ int differs;
  if (threadIdx.x == 0) differs = 0;
  __syncthreads();
  const std::size_t i = threadIdx.x * (count / block_threads);
  if (kept[i] != 2 * in[i]) differs = 1;
  __syncthreads();
  if (threadIdx.x == 0) *known = differs == 0;
}

__global__ void slow_unless_known_kernel(const float* in, const float* kept, const int* known, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if (*known != 0) {
    out[i] = kept[i];
    return;
  }
  const volatile float* from = in + i;
  volatile float* to = out + i;
  for (int pass = 0; pass < 6; ++pass) *to = 2 * *from;
}

__global__ void give_if_known_kernel(const float* kept, const int* known, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && *known != 0) out[i] = kept[i];
}

// Right at all times, and fast where the input has been there before.
class KnowsInputs final : public GpuDoubling {
 public:
  explicit KnowsInputs(Setup& setup) : GpuDoubling{setup}, kept_{out_.bytes()}, known_{sizeof(int)} {
    check(cudaMemset(kept_.get<float>(), 0, out_.bytes()));
  }
  void remember(Launch& launch) {
    compute_unless_known(launch);
    kept_.keep(out_, launch.stream);
  }
  void tell(Launch& launch) {
    slow(launch);
    kept_.keep(out_, launch.stream);
  }
  void compute_unless_told(Launch& launch) { compute_unless_known(launch); }
  // Only the baseline could tell that nothing was computed, where it has not run yet.
  void give_if_told(Launch& launch) {
    if (!calls_.timed()) return doubled(launch);
    look(launch);
    give_if_known_kernel<<<blocks(), block_threads, 0, launch.stream>>>(kept_.get<float>(), known_.get<int>(), out_, count_);
  }

 private:
  void look(Launch& launch) {
    known_kernel<<<1, block_threads, 0, launch.stream>>>(in_, kept_.get<float>(), count_, known_.get<int>());
  }
  void compute_unless_known(Launch& launch) {
    look(launch);
    slow_unless_known_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, kept_.get<float>(), known_.get<int>(), out_,
                                                                            count_);
  }
  OwnMemory kept_, known_;
  Calls calls_;
};

class AlwaysThree final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  double expected(std::size_t) const override { return 3; }
  void three(Launch& launch) { set(0, 3, count_, launch.stream); }
};

}  // namespace

extern constinit const selftest::Case gpu_stale_output =
    pair_of<&Remembers::the_first_run>({.does = "computes once and hands out the same result ever after",
                                        .must = fails("measurement/timed_samples", "reverify/depends_on_inputs")});
extern constinit const selftest::Case gpu_input_independent =
    pair_of<&AlwaysThree::three>({.does = "baseline and variant agree with each other, and neither looks at its input",
                                  .must = fails("reverify/depends_on_inputs"),
                                  .baseline = call<&AlwaysThree::three>});
extern constinit const selftest::Case gpu_copied_from_baseline =
    pair_of<&Remembers::what_was_shared>({.does = "hands out what the baseline computed in its last run",
                                          .must = stale_at_times,
                                          .baseline = call<&Remembers::share>});
extern constinit const selftest::Case gpu_hashes_inputs = pair_of<&KnowsInputs::remember>(
    {.does = "looks whether it has seen its input, and then hands out what it kept", .must = timed_otherwise});
extern constinit const selftest::Case gpu_shares_with_baseline =
    pair_of<&KnowsInputs::compute_unless_told>({.does = "computes only what the baseline has not computed on the same input",
                                                .must = timed_otherwise,
                                                .baseline = call<&KnowsInputs::tell>});
extern constinit const selftest::Case gpu_nothing_when_first = pair_of<&KnowsInputs::give_if_told>(
    {.does = "says that it computes in fewer bits, and computes nothing before the baseline has run on an input",
     .must = wrong_when_timed,
     .baseline = call<&KnowsInputs::tell>,
     .tolerance = automatic,
     .changes_precision = true});
extern constinit const selftest::Case gpu_found_in_pool =
    pair_of<&Remembers::from_the_pool>({.does = "finds what the baseline left in a memory pool",
                                        .must = fails("verify/reference", "verify/finite", "measurement/timed_samples"),
                                        .baseline = call<&Remembers::through_a_pool>});
extern constinit const selftest::Case gpu_input_by_heart = pair_of<&Remembers::by_heart>(
    {.does = "makes its input out of the usual seed instead of reading it", .must = stale_at_times});
extern constinit const selftest::Case gpu_flag_in_red_zone =
    pair_of<&Remembers::by_a_mark>({.does = "marks behind its output that the work is done, and skips it from then on",
                                    .must = fails("verify/red_zones", "verify/second_run")});

}  // namespace aisp::ch97
