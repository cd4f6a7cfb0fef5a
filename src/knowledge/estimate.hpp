// SPDX-License-Identifier: Apache-2.0
// The GPU memory that a model's inference needs, and its best possible speed: arithmetic on the makers' figures, nothing is
// measured. Assumed throughout: weights and cache divide evenly among the GPUs, communication between them, activations, the CUDA
// context and the framework cost nothing, and the sheets' bandwidth and rates are reached. Times are therefore floors, and memory
// that just fits does not.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "knowledge/model.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::knowledge {

using machine::NumberType;
// Returns the number types of weights and caches.
const std::vector<NumberType>& all_precisions();
NumberType parse_precision(std::string_view word);  // throws base::Error
// 4, 2, 2, 1, 1; fp4: 0.5625, a scale byte for each 16 values (NVFP4) included; int4: 0.5, the scales of its groups are not
// counted (2 bytes for 128 values are 3 %).
double bytes_per_element(NumberType precision);

struct Question {
  Model model;
  const machine::GpuSpec* gpu = nullptr;
  double gpus = 1;
  NumberType weights = NumberType::bf16;  // and of the arithmetic, where the GPU has it
  NumberType cache = NumberType::bf16;
  double batch = 1;                           // sequences at once
  double context = 1;                         // positions of each in the cache
  double prompt = 1;                          // tokens of each that prefill handles
  std::optional<double> tokens_per_second{};  // measured, of all GPUs together
  bool training = false;                      // they were trained on, not generated: MFU counts the backward pass too
};
// Throws base::Error (usage) for counts below 1, not whole or absurd, a prompt longer than the context, and impossible shapes.
void check_question(const Question& question);

// weights_bytes = parameters x bytes per element; cache_bytes = batch x context x KV elements a token x bytes per element;
// gpus_needed = (weights + cache) / memory of one GPU, rounded up.
struct Fit {
  NumberType weights{}, cache{};
  double weights_bytes = 0, cache_bytes = 0;
  bool fits = false;
  double gpus_needed = 0;
  double total_bytes() const { return weights_bytes + cache_bytes; }
};
Fit fit_of(const Question& question, NumberType weights, NumberType cache);
// Engines keep the cache of narrower weights in 16 bits unless told otherwise.
NumberType usual_cache(NumberType weights);

// One pass. Arithmetic intensity is FLOP / bytes; memory is the bound below the ridge point (rate / bandwidth), arithmetic above;
// seconds = the longer of FLOP / (gpus x rate) and bytes / (gpus x bandwidth).
struct Pass {
  double flops = 0, bytes = 0, seconds = 0;
  bool memory_bound = false;
  double intensity() const { return flops / bytes; }
};

// m x k by k x n, all three matrices moved once: 2 m k n / (bytes per element x (m k + k n + m n)).
struct Gemm {
  double m = 0, k = 0, n = 0, bytes_per_element = 2;
  double flops() const { return 2 * m * k * n; }
  double bytes() const { return bytes_per_element * (m * k + k * n + m * n); }
  double intensity() const { return flops() / bytes(); }
  double rounded_intensity() const;  // of FLOP and bytes rounded to two digits each, as one does by hand
};

struct Estimate {
  NumberType math{};                // that the arithmetic runs at
  bool math_replaced = false;       // the GPU has no rate for the weights' precision, whose values are widened first
  double flops_s = 0, bytes_s = 0;  // of one GPU
  double ridge = 0;                 // FLOP per byte
  double memory_bytes = 0;          // of all GPUs
  double cache_bytes_per_token = 0;
  Fit fit;
  std::vector<Fit> by_precision;  // each precision with its usual cache
  double largest_batch = 0;       // floor((memory - weights) / cache of one sequence)
  double largest_batch_each = 0;  // the same where each GPU keeps the whole cache
  // batch x prompt tokens at once. FLOP: 2 x active parameters a token, and half the square of the prompt for causal attention,
  // prompt (prompt + 1) / 2 positions a sequence. Bytes: the weights once, the cache written once.
  Pass prefill;
  // One token for each sequence. FLOP: 2 x active parameters and `context` positions of attention a token. Bytes: the weights
  // that the batch's tokens read, and the cache read once.
  Pass decode;
  Pass decode_weights_alone;  // the same without any cache: an empty context
  Gemm prefill_gemm;          // prompt x hidden by hidden x hidden, one projection of a layer
  Gemm decode_gemm;           // batch x hidden by hidden x hidden
  // The batch whose decode step takes the arithmetic as long as the memory: b with intensity = ridge.
  double ridge_batch_weights_alone = 0;  // ridge x bytes of all weights / (2 x active parameters)
  // With the cache b (FLOP a token - ridge x cache of a sequence) = ridge x weights; absent where the cache alone keeps every
  // batch below the ridge.
  std::optional<double> ridge_batch;
  // Model FLOP utilization: 2 x active parameters x tokens/s / (gpus x rate), in training 6 x, since the backward pass computes
  // the gradients of inputs and of weights; attention is not counted, nor is what is computed again to save memory.
  std::optional<double> mfu;

  double decode_tokens_s(const Question& question) const { return question.batch / decode.seconds; }
};
// The sheet's figure that a pass waits for.
const machine::Fact& limit_of(const Pass& pass, const Question& question, const Estimate& estimate);
// Returns doubts about the figures that the estimate rests on.
std::vector<machine::Doubt> doubts_of(const Question& question, const Estimate& estimate);

// Checks the question first.
Estimate estimate(const Question& question);

// The question for one kind of GPU, of which as many are taken as hold the model, and at least as many as were asked for.
struct Candidate {
  Question question;
  Estimate estimate;
  double decode_tokens_s_per_gpu() const { return estimate.decode_tokens_s(question) / question.gpus; }
};
std::vector<machine::Doubt> doubts_of(const Candidate& candidate);  // of its power too
// Every GPU of `aisp specs`, the most decoded tokens per second and GPU first.
std::vector<Candidate> rank_gpus(const Question& question);

}  // namespace aisp::knowledge
