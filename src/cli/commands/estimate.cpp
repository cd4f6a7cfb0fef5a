// SPDX-License-Identifier: Apache-2.0
#include "knowledge/estimate.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "cli/command.hpp"
#include "cli/commands/estimate_output.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using knowledge::Model;
using knowledge::Question;

// Numbers are read as doubles, so that 8.03e9 is one; check_question() demands whole ones.
using Number = std::optional<double>;

constexpr std::string_view every_gpu = "all", usual_gpu = "h200";

struct EstimateOptions {
  std::string model, config, gpu, dtype, cache;
  Number parameters, active, layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  Number prompt, tokens_per_second;
  Number memory, bandwidth, flops;  // of a GPU of the user's own
  double gpus = 1, batch = 1, context = 8192;
  bool json = false, training = false;

  bool has_gpu() const { return memory || bandwidth || flops; }
  bool has_shape() const { return layers || hidden || heads || kv_heads || head_dim || ffn || vocab; }
};

Model custom_model(const EstimateOptions& options) {
  if (!options.layers || !options.hidden || !options.heads)
    throw Error{Exit::usage, "a model of your own needs --layers, --hidden and --heads (and --kv-heads where they are fewer)"};
  Model model{.name = "custom", .source = "command line"};
  model.layers = *options.layers;
  model.hidden = *options.hidden;
  model.heads = *options.heads;
  model.kv_heads = options.kv_heads.value_or(model.heads);
  model.head_dim = options.head_dim.value_or(model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = options.ffn.value_or(0);
  model.vocab = options.vocab.value_or(0);
  if (model.ffn > 0 && model.vocab > 0) count_parameters(model, {});
  else if (!options.parameters)
    throw Error{Exit::usage, "give --parameters, or --ffn and --vocab to have them counted as in the Llama family"};
  return model;
}

// Returns the user's corrections to a file's model, which may lack a field or name it otherwise.
knowledge::Told completing(const EstimateOptions& options) {
  knowledge::Told told;
  const auto add = [&](const char* field, const Number& value) {
    if (value) told[field] = *value;
  };
  add("num_hidden_layers", options.layers);
  add("hidden_size", options.hidden);
  add("num_attention_heads", options.heads);
  add("num_key_value_heads", options.kv_heads);
  add("head_dim", options.head_dim);
  add("intermediate_size", options.ffn);
  add("vocab_size", options.vocab);
  return told;
}

void demand_one_model(const EstimateOptions& options) {
  const bool own_shape = options.has_shape() && options.config.empty();
  const int ways = (options.model.empty() ? 0 : 1) + (options.config.empty() ? 0 : 1) + (own_shape ? 1 : 0);
  if (ways != 1)
    throw Error{Exit::usage,
                ways == 0
                    ? "which model? give --model NAME, --config FILE, or --parameters, --layers, --hidden and --heads"
                    : "--model, --config and a shape of your own exclude each other; give one (a shape may complete a --config)"};
  if (!options.model.empty() && (options.parameters || options.active))
    throw Error{Exit::usage, "--parameters belongs to --config or a shape of your own; --model has its own"};
}

Model chosen_model(const EstimateOptions& options) {
  demand_one_model(options);
  Model model = !options.model.empty()    ? knowledge::find_model(options.model)
                : !options.config.empty() ? knowledge::read_model_config(options.config, completing(options))
                                          : custom_model(options);
  if (options.parameters) model.active_parameters = model.parameters = *options.parameters;
  if (options.active) model.active_parameters = *options.active;
  if (model.parameters == 0 && !options.parameters)
    throw Error{Exit::usage, fmt::format("{}: parameters of this kind of model are not counted here; give --parameters{}",
                                         options.config, model.experts > 0 ? " and --active-parameters" : "")};
  if (model.experts > 0 && options.parameters && !options.active)
    throw Error{Exit::usage, "a mixture of experts needs --active-parameters beside --parameters"};
  return model;
}

void check_figure(const char* flag, const Number& value) {
  if (value && (!(*value >= 1e6) || *value > 1e18))
    throw Error{Exit::usage, fmt::format("{} must be from 1e6 to 1e18, in bytes or FLOP/s, not {:g}", flag, *value)};
}

// The named GPU with the figures that were given, or one that has nothing else.
machine::GpuSpec own_gpu(const EstimateOptions& options) {
  if (options.gpu == every_gpu) throw Error{Exit::usage, "--memory, --bandwidth and --flops are of one GPU, not of --gpu all"};
  if (options.gpu.empty() && !(options.memory && options.bandwidth && options.flops))
    throw Error{Exit::usage,
                "a GPU of your own needs --memory, --bandwidth and --flops; with --gpu those that you leave out are that GPU's"};
  check_figure("--memory", options.memory);
  check_figure("--bandwidth", options.bandwidth);
  check_figure("--flops", options.flops);
  machine::GpuSpec spec =
      options.gpu.empty() ? machine::GpuSpec{.key = "own", .name = "GPU of your own"} : machine::find_spec(options.gpu);
  const auto told = [](double value) { return machine::Fact{value, &machine::command_line}; };
  if (options.memory) spec.memory_bytes = spec.device_bytes = told(*options.memory);
  if (options.bandwidth) spec.memory_bytes_s = told(*options.bandwidth);
  if (options.flops) spec.flops_s.fill(told(*options.flops));
  return spec;
}

// `own` is where a GPU of the user's own stays.
const machine::GpuSpec& chosen_gpu(const EstimateOptions& options, machine::GpuSpec& own) {
  if (options.has_gpu()) return own = own_gpu(options);
  if (options.gpu == every_gpu) return *machine::all_specs().front();
  return machine::find_spec(options.gpu.empty() ? usual_gpu : options.gpu,
                            "; of any other give --memory, --bandwidth and --flops");
}

Question question_of(const EstimateOptions& options, machine::GpuSpec& own) {
  Question question{.model = chosen_model(options), .gpu = &chosen_gpu(options, own)};
  question.gpus = options.gpus;
  const std::string stored = question.model.stored_as.empty() ? "bf16" : question.model.stored_as;
  question.weights = knowledge::parse_precision(options.dtype.empty() ? stored : options.dtype);
  question.cache = options.cache.empty() ? knowledge::usual_cache(question.weights) : knowledge::parse_precision(options.cache);
  question.batch = options.batch;
  question.context = options.context;
  question.prompt = options.prompt.value_or(options.context);
  question.tokens_per_second = options.tokens_per_second;
  question.training = options.training;
  return question;
}

void say_what_is_odd(const Question& question, const knowledge::Estimate& estimate) {
  for (const std::string& sentence : question.model.assumptions) note("note: " + sentence);
  if (!question.model.stored_as.empty() && name_of(question.weights) == question.model.stored_as)
    note(fmt::format("note: the file says that weights are {}; --dtype counts others", question.model.stored_as));
  if (std::fmod(question.model.heads, question.gpus) != 0)
    note(fmt::format("note: {:g} heads do not divide by {:g} GPUs, as servers want it that share out heads", question.model.heads,
                     question.gpus));
  if (question.model.latent_kv > 0 && question.gpus > 1)
    note(
        fmt::format("note: the latent cache is counted once, as if it were divided among the GPUs; with tensor parallelism each "
                    "GPU keeps all of it, which leaves room for {:.0f} of these sequences at most",
                    estimate.largest_batch_each));
  if (estimate.math_replaced)
    note(fmt::format("note: {} has no stated {} rate; its values are counted as widened to {}", question.gpu->name,
                     name_of(question.weights), name_of(estimate.math)));
  if (!estimate.fit.fits) note("note: it does not fit; the times are those of the same GPUs with enough memory");
  if (estimate.mfu && *estimate.mfu > 1)
    note("note: more tokens/s than the GPUs' arithmetic allows; a count of cached or rejected tokens?");
}

void add_model_flags(CLI::App& command, EstimateOptions& options) {
  command
      .add_option("--model", options.model, "a known model: llama-3-8b, -70b, -405b, mixtral-8x7b, qwen2.5-7b, -72b, deepseek-v3")
      ->type_name("NAME");
  command.add_option("--config", options.config, "a HuggingFace config.json")->type_name("FILE");
  const auto shape = [&](const char* flag, Number& to, const char* text) { add_number(command, flag, to, text)->type_name("N"); };
  shape("--parameters", options.parameters, "of a model of your own, as in 8.03e9");
  shape("--active-parameters", options.active, "that a token passes through, in a mixture of experts");
  shape("--layers", options.layers, "of a model of your own");
  shape("--hidden", options.hidden, "hidden size");
  shape("--heads", options.heads, "attention heads");
  shape("--kv-heads", options.kv_heads, "heads of keys and values [as many as heads]");
  shape("--head-dim", options.head_dim, "[hidden size / heads]");
  shape("--ffn", options.ffn, "intermediate size; with --vocab parameters are counted");
  shape("--vocab", options.vocab, "vocabulary");
}

void add_question_flags(CLI::App& command, EstimateOptions& options) {
  command.add_option("--gpu", options.gpu, "a GPU of aisp specs, as it or nvidia-smi names it, or all to rank them [h200]")
      ->type_name("GPU");
  add_number(command, "--memory", options.memory, "bytes of memory of a GPU of your own, as in 24e9")->type_name("N");
  add_number(command, "--bandwidth", options.bandwidth, "of its memory, bytes a second")->type_name("N");
  add_number(command, "--flops", options.flops, "its dense FLOP/s in the type of --dtype")->type_name("N");
  add_number(command, "--gpus", options.gpus, "how many of it [1]")->type_name("N");
  command
      .add_option("--dtype", options.dtype,
                  "of weights and arithmetic: fp32, bf16, fp16, fp8, int8, fp4, int4 [what --config says, else bf16]")
      ->type_name("TYPE");
  command.add_option("--kv-dtype", options.cache, "of the KV cache [as the weights, at least 16 bits]")->type_name("TYPE");
  add_number(command, "--batch", options.batch, "sequences at once [1]")->type_name("N");
  add_number(command, "--context", options.context, "positions of each in the KV cache [8192]")->type_name("N");
  add_number(command, "--prompt", options.prompt, "tokens of each that prefill handles [the context]")->type_name("N");
  add_number(command, "--tokens-per-second", options.tokens_per_second,
             "measured, of all GPUs together: gives the model FLOP utilization")
      ->type_name("X");
  command.add_flag("--training", options.training, "these tokens were trained on: 6 FLOP a parameter and token instead of 2");
  command.add_flag("--json", options.json, "as JSON");
}

}  // namespace

void add_estimate(CLI::App& app, Action& action) {
  auto options = std::make_shared<EstimateOptions>();
  CLI::App* command =
      app.add_subcommand("estimate", "compute whether a language model fits GPUs, and how fast it can be at best");
  add_model_flags(*command, *options);
  add_question_flags(*command, *options);
  command->callback([options, &action] {
    action = [options] {
      machine::GpuSpec own;
      const Question question = question_of(*options, own);
      if (options->gpu == every_gpu) {
        if (options->tokens_per_second)
          throw Error{Exit::usage, "--tokens-per-second was measured on one kind of GPU; name it with --gpu"};
        const std::vector<knowledge::Candidate> ranked = knowledge::rank_gpus(question);
        if (options->json) print(ranking_json(question, ranked));
        else show(ranking_text(question, ranked));
        return Exit::good;
      }
      const knowledge::Estimate estimate = knowledge::estimate(question);
      if (options->json) print(estimate_json(question, estimate));
      else show(estimate_text(question, estimate));
      say_what_is_odd(question, estimate);
      return Exit::good;
    };
  });
}

}  // namespace aisp::cli
