// SPDX-License-Identifier: Apache-2.0
// A library sums up rows of a function that its user brings: Huber's loss of two tensors. Behind a pointer, the function costs a
// call an element, and the loads of the next elements wait for it. Linked with the library's kernel at run time, it is called at
// a known address; shipped as LTO IR, both are compiled as if they had been one source, and the function is inlined.
#include <cuda_bf16.h>
#include <aisp/libraries/nvjitlink.hpp>
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <string>

#include "huber.cuh"
#include "loss_rows.cuh"

namespace aisp::ch14 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int packet_values = 8;

using Loss = float (*)(float, float);
using LossOfEight = float (*)(uint4, uint4);

__global__ __launch_bounds__(loss_threads) void pointer_kernel(const uint4* a, const uint4* b, float* sums, unsigned row_packets,
                                                               Loss loss) {
  sum_row(a, b, sums, row_packets, [loss](const uint4& as, const uint4& bs) { return loss_of_eight(as, bs, loss); });
}

__global__ __launch_bounds__(loss_threads) void pointer_per_8_kernel(const uint4* a, const uint4* b, float* sums,
                                                                     unsigned row_packets, LossOfEight loss) {
  sum_row(a, b, sums, row_packets, loss);
}

__global__ __launch_bounds__(loss_threads) void source_inlined_kernel(const uint4* a, const uint4* b, float* sums,
                                                                      unsigned row_packets) {
  sum_row(a, b, sums, row_packets, [](const uint4& as, const uint4& bs) { return loss_of_eight(as, bs, huber); });
}

// The user's functions, and where they are on the GPU.
__device__ float one_loss(float a, float b) { return huber(a, b); }
__device__ float eight_losses(uint4 a, uint4 b) { return loss_of_eight(a, b, huber); }
__device__ Loss one_loss_pointer = one_loss;
__device__ LossOfEight eight_losses_pointer = eight_losses;

using Linked = void(const uint4*, const uint4*, float*, unsigned);

class LtoCallbacks final : public Workload {
 public:
  explicit LtoCallbacks(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        predictions_{setup.input<bf16>(rows_ * columns_, normal(0, 1), {.name = "predictions"})},
        targets_{setup.input<bf16>(rows_ * columns_, normal(0, 1), {.name = "targets"})},
        sums_{setup.output<float>(rows_, {.name = "losses of rows"})},
        nvrtc_{setup},
        nvjitlink_{setup} {}

  Cost cost() const override {
    return {.flops = 4 * static_cast<double>(predictions_.size()),
            .bytes = static_cast<double>(predictions_.bytes() + targets_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t i = row * columns_; i < (row + 1) * columns_; ++i) {
      const double error = std::abs(predictions_.host(i) - targets_.host(i));
      sum += error <= delta ? error * error / 2 : delta * (error - delta / 2);
    }
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant == "linked_call") linked_call_.report(metrics);
    if (variant == "lto_linked") lto_linked_.report(metrics);
  }

  void find_pointers(Launch&) {
    check(cudaMemcpyFromSymbol(&one_loss_, one_loss_pointer, sizeof(one_loss_)));
    check(cudaMemcpyFromSymbol(&eight_losses_, eight_losses_pointer, sizeof(eight_losses_)));
  }
  void pointer(Launch& launch) {
    launch(pointer_kernel, grid(), packets(predictions_), packets(targets_), sums_.get(), row_packets(), one_loss_);
  }
  void pointer_per_8(Launch& launch) {
    launch(pointer_per_8_kernel, grid(), packets(predictions_), packets(targets_), sums_.get(), row_packets(), eight_losses_);
  }
  void link_machine_code(Launch&) {
    linked_call_ = linked(nvrtc_->relocatable(user_source()), LinkInput::Kind::cubin, LinkMode::machine_code);
  }
  void linked_call(Launch& launch) { run(launch, linked_call_.entry); }
  void link_lto(Launch&) { lto_linked_ = linked(nvrtc_->lto_ir(user_source()), LinkInput::Kind::lto_ir, LinkMode::optimized); }
  void lto_linked(Launch& launch) { run(launch, lto_linked_.entry); }
  void source_inlined(Launch& launch) { run(launch, source_inlined_kernel); }

 private:
  static constexpr double delta = huber_delta;

  static const uint4* packets(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  std::size_t row_packets() const { return columns_ / packet_values; }
  Grid grid() const { return {static_cast<unsigned>(rows_), loss_threads}; }
  void run(Launch& launch, Linked* kernel) {
    launch(kernel, grid(), packets(predictions_), packets(targets_), sums_.get(), row_packets());
  }

  static KernelSource user_source() {
    return {.name = "user_loss.cu",
            .text =
                "#include \"ch14/huber.cuh\"\n"
                "extern \"C\" __device__ float user_loss(float a, float b) { return aisp::ch14::huber(a, b); }\n"};
  }
  // The time is of both: compiling the user's function, and linking.
  CompiledKernel<Linked> linked(const CompiledCode& user, LinkInput::Kind kind, LinkMode mode) const {
    const std::string library = "ch14/lto/loss_rows.cu";
    CompiledKernel<Linked> kernel = nvjitlink_->kernel<Linked>(
        "loss_rows_kernel",
        {{LinkInput::Kind::fatbin, library, prebuilt_kernels(library)}, {kind, user_source().name, user.bytes}}, mode);
    kernel.compile_ms += user.compile_ms;
    return kernel;
  }

  std::size_t rows_, columns_;
  Input<bf16> predictions_, targets_;
  Output<float> sums_;
  Loss one_loss_ = nullptr;
  LossOfEight eight_losses_ = nullptr;
  Opened<Nvrtc> nvrtc_;
  Opened<NvJitLink> nvjitlink_;
  CompiledKernel<Linked> linked_call_, lto_linked_;
};

constexpr Needs linker{.libraries = {Library::nvrtc, Library::nvjitlink}};

}  // namespace

extern constinit const Pair lto_callbacks{
    .teaches = "a user's function that is linked into a library's kernel at run time costs no call through a pointer",
    .lesson = "linked_call",
    .make = make<LtoCallbacks>,
    .baseline = {.name = "pointer", .run = call<&LtoCallbacks::pointer>, .prepare = call<&LtoCallbacks::find_pointers>},
    .optimized = variants({{.name = "pointer_per_8",
                            .run = call<&LtoCallbacks::pointer_per_8>,
                            .prepare = call<&LtoCallbacks::find_pointers>,
                            .same_bits_as = "pointer"},
                           {.name = "linked_call",
                            .run = call<&LtoCallbacks::linked_call>,
                            .prepare = call<&LtoCallbacks::link_machine_code>,
                            .needs = linker,
                            .same_bits_as = "pointer",
                            .gains_over = "pointer"},
                           {.name = "lto_linked",
                            .run = call<&LtoCallbacks::lto_linked>,
                            .prepare = call<&LtoCallbacks::link_lto>,
                            .needs = linker,
                            .same_bits_as = "pointer",
                            .kernels = {.local_bytes = 0}}}),
    .controls = variants({{.name = "source_inlined",
                           .run = call<&LtoCallbacks::source_inlined>,
                           .same_bits_as = "pointer",
                           .kernels = {.local_bytes = 0}}}),
    .bound = Bound::memory,
    // Four packets a thread, 32 threads, eight warps: sums in fp32 are off by less.
    .tolerance = within(1e-5),
    .sizes =
        sizes({{.name = "rows", .full = 32768, .most = 1 << 20}, {.name = "columns", .full = 8192, .multiple = packet_values}}),
    .edges = cases({{"one_row", "rows=1"},
                    {"one_packet", "rows=3,columns=8"},
                    {"odd_columns", "rows=37,columns=1000"},
                    {"a_thread_with_one_more", "rows=5,columns=2056"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch14
