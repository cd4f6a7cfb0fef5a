// SPDX-License-Identifier: Apache-2.0
// One step of greedy decoding whose tokens a grammar allows: of 256 requests each is in one of 512 states, and a state allows a
// few of 128256 tokens. A mask that the host puts together for every step is 4 MB, written, copied and applied, where the choice
// of a row of it is one number: the rows can stay on the GPU, and logits that no token of a mask wants need not be read.
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "top_k.cuh"

namespace aisp::ch15 {
namespace {

using shared::Candidate;

constexpr int threads = 512, states = 512;
constexpr unsigned byte_logits = 8;  // of a byte of a mask: a sector of 32 bytes

// Logits of the requests, a mask's rows, and which of the rows a request has; null: its own.
struct Step {
  const float* logits;  // [request][pitch]
  const std::uint8_t* masks;
  const int* states;
  int* tokens;
  unsigned vocabulary, pitch, mask_bytes;
  __device__ __forceinline__ const std::uint8_t* mask() const {
    return masks + std::size_t(states == nullptr ? static_cast<int>(blockIdx.x) : states[blockIdx.x]) * mask_bytes;
  }
};

// The highest logit so far and its token; tokens come in ascending order, so that of equal ones the first stays.
struct Choice {
  float highest = -INFINITY;
  unsigned token = ~0u;
  __device__ __forceinline__ void see(float logit, unsigned of) {
    if (logit > highest) highest = logit, token = of;
  }
};
// Stores the best of the whole block: -1 where no logit is above -inf.
__device__ __forceinline__ void store_best(const Choice& own, int* to) {
  __shared__ Candidate best[device::largest_block_in_warps];
  const Candidate of_block =
      device::block_max(own.token == ~0u ? Candidate{0} : shared::candidate(own.highest, own.token), Candidate{0}, best);
  if (threadIdx.x == 0) *to = of_block == 0 ? -1 : static_cast<int>(shared::place_of(of_block));
}

// A thread has a byte of the mask and its eight logits.
__global__ __launch_bounds__(threads) void mask_kernel(float* logits, const std::uint8_t* masks, unsigned pitch,
                                                       unsigned mask_bytes) {
  const unsigned i = blockIdx.y * threads + threadIdx.x;
  if (i >= mask_bytes || i * byte_logits >= pitch) return;
  const unsigned allowed = masks[std::size_t{blockIdx.x} * mask_bytes + i];
  float* const own = logits + std::size_t{blockIdx.x} * pitch + i * byte_logits;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned bits = allowed >> 4 * half & 15u;
    if (bits == 0) reinterpret_cast<float4*>(own)[half] = float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      if (bits != 0 && (bits >> k & 1u) == 0) own[half * 4 + k] = -INFINITY;
  }
}
__global__ __launch_bounds__(threads, 2) void argmax_kernel(Step step) {
  constexpr int in_flight = 4;
  const float4* const row = reinterpret_cast<const float4*>(step.logits + std::size_t{blockIdx.x} * step.pitch);
  Choice own;
  for (unsigned first = threadIdx.x; first < step.pitch / 4; first += threads * in_flight) {
    float4 x[in_flight];
#pragma unroll
    for (unsigned j = 0; j < in_flight; ++j)
      if (first + j * threads < step.pitch / 4) x[j] = row[first + j * threads];
#pragma unroll
    for (unsigned j = 0; j < in_flight; ++j) {
      const unsigned token = (first + j * threads) * 4;
      if (token >= step.pitch) break;
      own.see(x[j].x, token), own.see(x[j].y, token + 1), own.see(x[j].z, token + 2), own.see(x[j].w, token + 3);
    }
  }
  store_best(own, step.tokens + blockIdx.x);
}

// Mask and choice in one read; with `sparse` not even that of all logits: bytes of the mask come first, and where one is 0 its
// sector is left alone.
template <bool sparse>
__global__ __launch_bounds__(threads, 2) void masked_argmax_kernel(Step step) {
  constexpr unsigned in_flight = 4;
  const float4* const row = reinterpret_cast<const float4*>(step.logits + std::size_t{blockIdx.x} * step.pitch);
  const std::uint8_t* const mask = step.mask();
  Choice own;
  for (unsigned first = threadIdx.x; first < step.mask_bytes; first += threads * in_flight) {
    unsigned allowed[in_flight];
    float4 x[in_flight][2];
#pragma unroll
    for (unsigned j = 0; j < in_flight; ++j) allowed[j] = first + j * threads < step.mask_bytes ? mask[first + j * threads] : 0;
#pragma unroll
    for (unsigned j = 0; j < in_flight; ++j) {
      const unsigned sector = first + j * threads;
      if (sparse ? allowed[j] != 0 : sector * byte_logits < step.pitch) x[j][0] = row[sector * 2], x[j][1] = row[sector * 2 + 1];
    }
#pragma unroll
    for (unsigned j = 0; j < in_flight; ++j) {
      const unsigned token = (first + j * threads) * byte_logits;
      const float logits[] = {x[j][0].x, x[j][0].y, x[j][0].z, x[j][0].w, x[j][1].x, x[j][1].y, x[j][1].z, x[j][1].w};
#pragma unroll
      for (unsigned k = 0; k < byte_logits; ++k)
        if ((allowed[j] >> k & 1u) != 0) own.see(logits[k], token + k);
    }
  }
  store_best(own, step.tokens + blockIdx.x);
}

class GuidedDecoding final : public Workload {
 public:
  explicit GuidedDecoding(Setup& setup)
      : requests_{setup.size("requests")},
        vocabulary_{setup.size("vocabulary")},
        pitch_{(vocabulary_ + byte_logits - 1) / byte_logits * byte_logits},
        mask_bytes_{(vocabulary_ + 31) / 32 * 4},
        // On a grid, so that there are ties; and some that are allowed are -inf. Constant, as the states are, since `reset` puts
        // back what is masked in place.
        logits_{setup.input<float>(requests_ * pitch_,
                                   normal(0, 2.5f).on_grid(0.25f).set(-std::numeric_limits<float>::infinity(),
                                                                      at(Axis{1, pitch_}, vocabulary_ / 2, vocabulary_ / 64)),
                                   {.name = "logits", .constant = true})},
        masks_{setup.input<std::uint8_t>(states * mask_bytes_, masks_of_states(vocabulary_, mask_bytes_),
                                         {.name = "masks of the states", .memory = Memory::pageable, .constant = true})},
        // The first request may take the last token alone, and the second one any.
        states_{setup.input<int>(requests_,
                                 integers(0, states - 1).set(0, at(Axis{1, requests_}, 0)).set(1, at(Axis{1, requests_}, 1)),
                                 {.name = "states", .memory = Memory::pinned, .constant = true})},
        tokens_{setup.output<int>(requests_, {.name = "tokens"})},
        masked_{setup.scratch<float>(logits_.size(), {.name = "logits to be masked"})},
        collected_{
            setup.scratch<std::uint8_t>(requests_ * mask_bytes_, {.name = "masks of the requests", .memory = Memory::pinned})},
        copied_{setup.scratch<std::uint8_t>(requests_ * mask_bytes_, {.name = "masks of the requests on the GPU"})},
        resident_{setup.scratch<std::uint8_t>(states * mask_bytes_, {.name = "masks of the states on the GPU"})},
        numbers_{setup.scratch<int>(requests_, {.name = "states on the GPU"})},
        arrived_{setup.event()} {}

  Cost cost() const override { return cost_of(static_cast<double>(logits_.bytes()), static_cast<double>(states_.bytes())); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "allowed_only") return cost_of(bytes_of_allowed(), static_cast<double>(states_.bytes()));
    if (variant == "resident_states") return cost();
    return cost_of(static_cast<double>(logits_.bytes()), static_cast<double>(collected_.bytes()));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(requests_), "tokens/s");
  }
  double expected(std::size_t request) const override {
    double highest = -std::numeric_limits<double>::infinity();
    int token = -1;
    const auto state = static_cast<std::size_t>(states_.host(request));
    for (std::size_t i = 0; i < vocabulary_; ++i) {
      if ((masks_.host(state * mask_bytes_ + i / 8) >> i % 8 & 1) == 0) continue;
      const double logit = logits_.host(request * pitch_ + i);
      if (logit > highest) highest = logit, token = static_cast<int>(i);
    }
    return token;
  }

  // Logits are new in every step: masking them in place wants a copy of its own, which is not timed.
  void take_logits(Launch& launch) {
    check(cudaMemcpyAsync(masked_, logits_, logits_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }
  void host_masks(Launch& launch) {
    collect();
    rows_ready(launch);
  }
  void rows_ready(Launch& launch) {
    copy(launch);
    const auto parts = static_cast<unsigned>((mask_bytes_ + threads - 1) / threads);
    launch(mask_kernel, {dim3{requests(), parts}, threads}, masked_.get(), copied_.get(), pitch_, mask_bytes_);
    launch(argmax_kernel, {requests(), threads}, step(masked_, nullptr, nullptr));
  }
  void collect_once(Launch& launch) {
    collect();
    take_logits(launch);
  }
  void fused_argmax(Launch& launch) {
    collect();
    copy(launch);
    launch(masked_argmax_kernel<false>, {requests(), threads}, step(logits_, copied_, nullptr));
  }
  // Once, when the grammar is compiled.
  void upload(Launch& launch) {
    check(cudaMemcpyAsync(resident_, masks_.get(), masks_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  template <bool sparse>
  void resident(Launch& launch) {
    check(cudaMemcpyAsync(numbers_, states_, states_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    launch(masked_argmax_kernel<sparse>, {requests(), threads}, step(logits_, resident_, numbers_));
  }

 private:
  // 2 to 60000 tokens of 128256, each number as likely as its half. State 0 allows the last token, state 1 all.
  static HostFill<std::uint8_t> masks_of_states(std::size_t vocabulary, std::size_t mask_bytes) {
    return [=](std::span<std::uint8_t> masks, std::uint64_t seed) {
      std::ranges::fill(masks, std::uint8_t{0});
      const auto allow = [&](std::size_t state, std::size_t token) {
        masks[state * mask_bytes + token / 8] |= static_cast<std::uint8_t>(1u << token % 8);
      };
      allow(0, vocabulary - 1);
      for (std::size_t token = 0; token < vocabulary; ++token) allow(1, token);
      for (std::size_t state = 2; state < states; ++state) {
        const double share = static_cast<double>(random_bits(seed, state) >> 11) * 0x1p-53;
        const double most = 0.47 * static_cast<double>(vocabulary);
        const auto count = static_cast<std::size_t>(2 * std::pow(std::max(1.0, most / 2), share));
        for (std::size_t i = 0; i < count; ++i) allow(state, random_bits(seed + state, i) % vocabulary);
      }
    };
  }

  // The engine thread's work in every step. The buffer must not be on its way any more.
  void collect() {
    check(cudaEventSynchronize(arrived_));
    for (std::size_t request = 0; request < requests_; ++request)
      std::memcpy(collected_.get() + request * mask_bytes_,
                  masks_.get() + static_cast<std::size_t>(states_.get()[request]) * mask_bytes_, mask_bytes_);
  }
  void copy(Launch& launch) {
    check(cudaMemcpyAsync(copied_, collected_, collected_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaEventRecord(arrived_, launch.stream));
  }
  Step step(const float* logits, const std::uint8_t* masks, const int* of) const {
    return {logits,
            masks,
            of,
            tokens_,
            static_cast<unsigned>(vocabulary_),
            static_cast<unsigned>(pitch_),
            static_cast<unsigned>(mask_bytes_)};
  }
  // Masks are read once for each state that a request is in.
  Cost cost_of(double logit_bytes, double over_pcie) const {
    const double distinct = states * (1 - std::pow(1 - 1.0 / states, static_cast<double>(requests_)));
    return in_turn({{.host_to_device = over_pcie},
                    {.bytes = logit_bytes + distinct * static_cast<double>(mask_bytes_) + static_cast<double>(tokens_.bytes())}});
  }
  double bytes_of_allowed() const {
    std::size_t sectors = 0;
    for (std::size_t i = 0; i < masks_.size(); ++i) sectors += masks_.host(i) != 0;
    return 32.0 * static_cast<double>(sectors) * static_cast<double>(requests_) / states;
  }
  unsigned requests() const { return static_cast<unsigned>(requests_); }

  std::size_t requests_, vocabulary_, pitch_, mask_bytes_;
  Input<float> logits_;
  Input<std::uint8_t> masks_;
  Input<int> states_;
  Output<int> tokens_;
  Scratch<float> masked_;
  Scratch<std::uint8_t> collected_, copied_, resident_;
  Scratch<int> numbers_;
  cudaEvent_t arrived_;
};

}  // namespace

extern constinit const Pair guided_decoding{
    .teaches = "a mask that the host builds for every step moves thousands of times more bytes than the choice of its row needs",
    .lesson = "resident_states",
    .make = make<GuidedDecoding>,
    .baseline = {.name = "host_masks", .run = call<&GuidedDecoding::host_masks>, .reset = call<&GuidedDecoding::take_logits>},
    .optimized = variants(
        {{.name = "fused_argmax", .run = call<&GuidedDecoding::fused_argmax>},
         {.name = "resident_states", .run = call<&GuidedDecoding::resident<false>>, .prepare = call<&GuidedDecoding::upload>},
         {.name = "allowed_only", .run = call<&GuidedDecoding::resident<true>>, .prepare = call<&GuidedDecoding::upload>}}),
    .controls = variants(
        {{.name = "rows_ready", .run = call<&GuidedDecoding::rows_ready>, .reset = call<&GuidedDecoding::collect_once>}}),
    .bound = Bound::host,
    .tolerance = exact,
    .start = Start::immediate,
    .sizes = sizes({{.name = "requests", .full = 256, .most = 4096},
                    {.name = "vocabulary", .full = 128256, .least = 8, .most = 1 << 20, .scales = false}}),
    .sweep = cases({{"requests_1", "requests=1"},
                    {"requests_16", "requests=16"},
                    {"requests_64", "requests=64"},
                    {"requests_256", "requests=256"},
                    {"requests_1024", "requests=1024"}}),
    .edges = cases({{"the_last_token", "requests=1"},
                    {"any_token", "requests=2,vocabulary=32001"},
                    {"short_vocabulary", "requests=700,vocabulary=33"},
                    {"eight_tokens", "requests=64,vocabulary=8"}}),
};

}  // namespace aisp::ch15
