// SPDX-License-Identifier: Apache-2.0
// Blocks and optimizer in bf16 against their float64 references, and that bits repeat.

#include <cstring>
#include <utility>

#include "device/gpu_test.hpp"
#include "lt_test.hpp"
#include "plain_setup.hpp"
#include "training/adamw.cuh"
#include "training/decoder_block.hpp"
#include "training/reference.cuh"
#include "values.hpp"

namespace readme_example {
#include "training_example.cuh"
}  // namespace readme_example

namespace aisp::training::test {
namespace {

// A result passes some six roundings to bf16, of 1.6e-3 each.
constexpr double allowed = 8e-3;

template <class T>
OnGpu<T> poisoned(std::size_t count) {
  std::vector<T> values(count);
  std::memset(static_cast<void*>(values.data()), 0xFF, count * sizeof(T));
  return OnGpu<T>{values};
}

struct MlpBuffers {
  explicit MlpBuffers(const MlpShape& s)
      : normed{poisoned<bf16>(s.tokens * s.width)},
        inverse_rms{poisoned<float>(s.tokens)},
        gate_up{poisoned<bf16>(s.tokens * 2 * s.hidden)},
        product{poisoned<bf16>(s.tokens * s.hidden)},
        d_normed{poisoned<bf16>(s.tokens * s.width)},
        d_gate_up{poisoned<bf16>(s.tokens * 2 * s.hidden)},
        d_product{poisoned<bf16>(s.tokens * s.hidden)},
        of_norm{poisoned<float>(s.width)},
        of_gate_up{poisoned<bf16>(2 * s.hidden * s.width)},
        of_down{poisoned<bf16>(s.width * s.hidden)} {}
  MlpActivations activations() const { return {normed.get(), inverse_rms.get(), gate_up.get(), product.get()}; }
  MlpWorkspace workspace() const { return {d_normed.get(), d_gate_up.get(), d_product.get()}; }
  MlpGradients gradients() const { return {of_norm.get(), of_gate_up.get(), of_down.get()}; }

  OnGpu<bf16> normed;
  OnGpu<float> inverse_rms;
  OnGpu<bf16> gate_up, product, d_normed, d_gate_up, d_product;
  OnGpu<float> of_norm;
  OnGpu<bf16> of_gate_up, of_down;
};
struct MlpInputs {
  explicit MlpInputs(const MlpShape& s)
      : norm{narrow(drawn(s.width, 2, 0.3, 1))},
        gate_up{narrow(drawn(2 * s.hidden * s.width, 3, 1 / std::sqrt(static_cast<double>(s.width))))},
        down{narrow(drawn(s.width * s.hidden, 4, 1 / std::sqrt(static_cast<double>(s.hidden))))} {}
  MlpWeights weights() const { return {norm.get(), gate_up.get(), down.get()}; }
  OnGpu<bf16> norm, gate_up, down;
};

class TrainingStep : public LtTest<8> {
 protected:
  void expect_near(const char* what, const Values& found, const Doubles& wanted, double limit = allowed) {
    EXPECT_LE(distance(found, wanted.host()), limit) << what;
  }

  PlainLaunch launch_;
};

// Rows that are no multiple of a warp's, more rows than blocks of the norm's backward pass, and one of zeros.
TEST_F(TrainingStep, MlpBlockIsNearItsReference) {
  for (const MlpShape& shape : {MlpShape{40, 264, 328}, MlpShape{1000, 64, 136}}) {
    const std::size_t rows = shape.tokens * shape.width;
    Values x = drawn(rows, 1, 1);
    std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(shape.width), shape.width, 0);
    const Values dy = drawn(rows, 5, 1);
    const MlpInputs inputs{shape};
    const MlpWeights weights = inputs.weights();
    const MlpBlock block{*setup_, *lt_, shape};
    const MlpBuffers of{shape};
    const OnGpu<bf16> x_gpu{narrow(x)}, dy_gpu{narrow(dy)}, y = poisoned<bf16>(rows), dx = poisoned<bf16>(rows);
    block.forward(launch_, x_gpu.get(), weights, of.activations(), y.get());
    block.backward(launch_, x_gpu.get(), dy_gpu.get(), weights, of.activations(), of.workspace(), of.gradients(), dx.get());
    const MlpReference reference{shape};
    const Doubles wanted_y{rows}, wanted_dx{rows}, norm{shape.width}, gate_up{2 * shape.hidden * shape.width},
        down{shape.width * shape.hidden};
    reference.forward(nullptr, Doubles{x}, weights, wanted_y);
    reference.backward(nullptr, Doubles{dy}, weights, {norm, gate_up, down}, wanted_dx);
    expect_near("y", wide(y.host()), wanted_y);
    expect_near("dx", wide(dx.host()), wanted_dx);
    expect_near("gradient of the norm", wide(of.of_norm.host()), norm);
    expect_near("gradient of gates and ups", wide(of.of_gate_up.host()), gate_up);
    expect_near("gradient down", wide(of.of_down.host()), down);

    // Values dropped and computed again have the same bits, and dx may take dy's place.
    const auto bits = [](const OnGpu<bf16>& buffer) {
      const std::vector<bf16> values = buffer.host();
      std::vector<std::uint16_t> result(values.size());
      std::memcpy(result.data(), static_cast<const void*>(values.data()), values.size() * sizeof(bf16));
      return result;
    };
    const auto first_down = bits(of.of_down), first_dx = bits(dx);
    check(cudaMemset(of.product.get(), 0xFF, shape.tokens * shape.hidden * sizeof(bf16)));
    block.backward(launch_, x_gpu.get(), dy_gpu.get(), weights, of.activations(), of.workspace(), of.gradients(), dy_gpu.get(),
                   true);
    EXPECT_EQ(bits(of.of_down), first_down);
    EXPECT_EQ(bits(dy_gpu), first_dx);
  }
}

// The gate of the README's example: twice SwiGLU.
struct DoubledGate {
  const MlpBlock* block;
  std::size_t count;

  void forward(Launch& launch, const MlpActivations& to) const {
    block->gate(launch, to);
    double_all(launch, to.product, count);
  }
  void backward(Launch& launch, const MlpActivations& of, const MlpWorkspace& space) const {
    block->gate_backward(launch, of, space);
    double_all(launch, space.d_gate_up, 2 * count);
  }
  static void double_all(Launch& launch, bf16* values, std::size_t count);
};
__global__ void double_kernel(bf16* values, std::size_t count) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) values[i] = __float2bfloat16_rn(2 * __bfloat162float(values[i]));
}
void DoubledGate::double_all(Launch& launch, bf16* values, std::size_t count) { launch(double_kernel, {1, 256}, values, count); }

// Twice the gate is the block with twice the weights down.
TEST_F(TrainingStep, AnotherGateTakesTheGatesPlace) {
  const MlpShape shape{40, 64, 136};
  const std::size_t rows = shape.tokens * shape.width;
  const MlpInputs inputs{shape};
  Values doubled = drawn(shape.width * shape.hidden, 4, 1 / std::sqrt(static_cast<double>(shape.hidden)));
  for (double& weight : doubled) weight *= 2;
  const OnGpu<bf16> doubled_down{narrow(doubled)};
  const MlpWeights weights = inputs.weights(), with_doubled{weights.norm, weights.gate_up, doubled_down.get()};
  const MlpBlock block{*setup_, *lt_, shape};
  const readme_example::BlockWithGate<DoubledGate> other{*setup_, *lt_, shape, {&block, shape.tokens * shape.hidden}};
  const MlpBuffers of{shape}, of_other{shape};
  const OnGpu<bf16> x{narrow(drawn(rows, 1, 1))}, dy{narrow(drawn(rows, 5, 1))},
      y = poisoned<bf16>(rows), dx = poisoned<bf16>(rows), other_y = poisoned<bf16>(rows), other_dx = poisoned<bf16>(rows);
  block.forward(launch_, x.get(), with_doubled, of.activations(), y.get());
  block.backward(launch_, x.get(), dy.get(), with_doubled, of.activations(), of.workspace(), of.gradients(), dx.get());
  other.forward(launch_, x.get(), weights, of_other.activations(), other_y.get());
  other.backward(launch_, x.get(), dy.get(), weights, of_other.activations(), of_other.workspace(), of_other.gradients(),
                 other_dx.get());
  EXPECT_LE(distance(wide(other_y.host()), wide(y.host())), 1e-6);
  EXPECT_LE(distance(wide(other_dx.host()), wide(dx.host())), 1e-6);
  EXPECT_LE(distance(wide(of_other.of_gate_up.host()), wide(of.of_gate_up.host())), 1e-6);
}

TEST_F(TrainingStep, GatesBeyondTheExponentialsRangeGiveNoNan) {
  const MlpShape shape{8, 64, 64};
  const MlpBuffers of{shape};
  std::vector<bf16> h(shape.tokens * 2 * shape.hidden, bf16{2.0f});
  const float gates[] = {0, -0.0f, 20, -20, 100, -100, 3e38f, -3e38f};
  for (std::size_t i = 0; i < 8; ++i) h[i] = __float2bfloat16_rn(gates[i]);
  const OnGpu<bf16> h_gpu{h}, d{std::vector<bf16>(shape.tokens * shape.hidden, bf16{1.0f})};
  swiglu_backward_kernel<<<2, row_threads>>>(reinterpret_cast<const uint4*>(h_gpu.get()), reinterpret_cast<const uint4*>(d.get()),
                                             reinterpret_cast<uint4*>(of.d_gate_up.get()),
                                             reinterpret_cast<uint4*>(of.product.get()), shape.hidden / packet,
                                             shape.tokens * shape.hidden / packet);
  check(cudaDeviceSynchronize());
  const Values product = wide(of.product.host()), dh = wide(of.d_gate_up.host());
  EXPECT_EQ(product[4], 200);
  EXPECT_EQ(product[5], 0);
  EXPECT_EQ(dh[4], 2);  // the slope of silu far out is 1, times up
  EXPECT_EQ(dh[5], 0);
  for (std::size_t i = 0; i < product.size(); ++i) EXPECT_FALSE(std::isnan(product[i])) << i;
  for (std::size_t i = 0; i < dh.size(); ++i) EXPECT_FALSE(std::isnan(dh[i])) << i;
}

class DecoderStep : public TrainingStep {
 protected:
  void SetUp() override {
    TrainingStep::SetUp();
    if (IsSkipped()) return;
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "the attention engine is for compute capability 9.0";
  }
  template <int head_size>
  void expect_near_reference(const DecoderShape& shape);
};

template <int head_size>
void DecoderStep::expect_near_reference(const DecoderShape& shape) {
  const AttentionShape& a = shape.attention;
  const MlpShape mlp = shape.mlp();
  const std::size_t width = a.width(), rows = a.rows() * width;
  const Values x = drawn(rows, 1, 1), dy = drawn(rows, 5, 1);
  const double deviation = 1 / std::sqrt(static_cast<double>(width));
  const OnGpu<bf16> norm{narrow(drawn(width, 6, 0.3, 1))}, qkv{narrow(drawn(3 * width * width, 7, deviation))},
      out{narrow(drawn(width * width, 8, deviation))};
  const MlpInputs inputs{mlp};
  const DecoderWeights weights{{norm.get(), qkv.get(), out.get()}, inputs.weights()};
  const DecoderBlock<head_size> block{*setup_, *lt_, shape};
  const MlpBuffers of{mlp};
  const auto normed = poisoned<bf16>(rows), projected = poisoned<bf16>(3 * rows), attended = poisoned<bf16>(rows),
             between = poisoned<bf16>(rows), y = poisoned<bf16>(rows), d_normed = poisoned<bf16>(rows),
             d_qkv = poisoned<bf16>(3 * rows), d_attended = poisoned<bf16>(rows), dx = poisoned<bf16>(rows),
             of_qkv = poisoned<bf16>(3 * width * width), of_out = poisoned<bf16>(width * width);
  const auto inverse_rms = poisoned<float>(a.rows()), log_sums = poisoned<float>(a.rows() * a.heads),
             of_norm = poisoned<float>(width);
  const OnGpu<bf16> x_gpu{narrow(x)}, dy_gpu{narrow(dy)};
  const DecoderActivations kept{
      {normed.get(), inverse_rms.get(), projected.get(), attended.get(), log_sums.get()}, between.get(), of.activations()};
  block.forward(launch_, x_gpu.get(), weights, kept, y.get());
  block.backward(launch_, x_gpu.get(), dy_gpu.get(), weights, kept,
                 {{d_normed.get(), d_qkv.get(), d_attended.get()}, of.workspace()},
                 {{of_norm.get(), of_qkv.get(), of_out.get()}, of.gradients()}, dx.get());

  const AttentionReference attention{a};
  const MlpReference of_mlp{mlp};
  const Doubles middle{rows}, wanted_y{rows}, d_middle{rows}, wanted_dx{rows}, d_norm{width}, wanted_qkv{3 * width * width},
      wanted_out{width * width}, mlp_norm{width}, gate_up{2 * mlp.hidden * width}, down{width * mlp.hidden};
  attention.forward(nullptr, Doubles{x}, weights.attention, middle);
  of_mlp.forward(nullptr, middle, weights.mlp, wanted_y);
  of_mlp.backward(nullptr, Doubles{dy}, weights.mlp, {mlp_norm, gate_up, down}, d_middle);
  attention.backward(nullptr, d_middle, weights.attention, {d_norm, wanted_qkv, wanted_out}, wanted_dx);
  expect_near("y", wide(y.host()), wanted_y);
  expect_near("dx", wide(dx.host()), wanted_dx);
  expect_near("gradient of the norm before attention", wide(of_norm.host()), d_norm, 2 * allowed);
  expect_near("gradient of Q, K and V", wide(of_qkv.host()), wanted_qkv, 2 * allowed);
  expect_near("gradient of the output projection", wide(of_out.host()), wanted_out, 2 * allowed);
  expect_near("gradient of gates and ups", wide(of.of_gate_up.host()), gate_up, 2 * allowed);
}

TEST_F(DecoderStep, IsNearItsReference) {
  expect_near_reference<64>({{2, 200, 4, 64}, 328});
  expect_near_reference<128>({{1, 130, 2, 128}, 328});
}

TEST_F(TrainingStep, AdamWUpdatesWeightsMomentsAndTheCopy) {
  constexpr std::size_t count = 8 * 300;
  const AdamWStep step{{.rate = 1e-2f, .decay = 0.1f}, 3};
  const Values weights = drawn(count, 1, 1), gradients = drawn(count, 2, 0.1), firsts = drawn(count, 3, 0.1);
  Values seconds = drawn(count, 4, 0.01);
  for (double& second : seconds) second = std::abs(second);
  const auto floats = [](const Values& values) { return std::vector<float>(values.begin(), values.end()); };
  const OnGpu<float> w{floats(weights)}, m{floats(firsts)}, v{floats(seconds)};
  const OnGpu<bf16> g{narrow(gradients)}, copies = poisoned<bf16>(count);
  update(launch_, AdamWState{w.get(), m.get(), v.get(), copies.get(), count}, g.get(), step);
  Values wanted = weights, first = firsts, second = seconds;
  for (std::size_t i = 0; i < count; ++i) {
    const double old = wanted[i];
    first[i] = 0.9f * first[i] + (1 - double{0.9f}) * gradients[i];
    second[i] = 0.999f * second[i] + (1 - double{0.999f}) * gradients[i] * gradients[i];
    const double corrected = first[i] / (1 - std::pow(double{0.9f}, 3)), of = second[i] / (1 - std::pow(double{0.999f}, 3));
    wanted[i] = old - double{1e-2f} * (corrected / (std::sqrt(of) + double{1e-8f}) + double{0.1f} * old);
  }
  EXPECT_LE(distance(wide(w.host()), wanted), 1e-5);  // the step's two terms are 1e-2 and 1e-3 of the weights
  EXPECT_LE(distance(wide(m.host()), first), 1e-6);
  EXPECT_LE(distance(wide(v.host()), second), 1e-6);
  const std::vector<float> updated = w.host();
  const std::vector<bf16> copied = copies.host();
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(static_cast<float>(copied[i]), static_cast<float>(__float2bfloat16_rn(updated[i])));
}

}  // namespace
}  // namespace aisp::training::test
