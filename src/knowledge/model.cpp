// SPDX-License-Identifier: Apache-2.0
#include "knowledge/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::knowledge {
namespace {

using base::Error;
using base::Exit;

Model counted(Model model, const Layout& layout = {}) {
  count_parameters(model, layout);
  return model;
}

Model dense(const char* name, const std::string& source, double layers, double hidden, double heads, double kv_heads, double ffn,
            double vocab) {
  return Model{.name = name,
               .source = source,
               .layers = layers,
               .hidden = hidden,
               .heads = heads,
               .kv_heads = kv_heads,
               .head_dim = hidden / heads,
               .ffn = ffn,
               .vocab = vocab};
}

// The main model without its multi-token prediction module; three dense layers and one shared expert make its count its own.
Model deepseek_v3() {
  return {.name = "deepseek-v3",
          .source = "DeepSeek-V3 technical report and config.json",
          .parameters = 671e9,
          .active_parameters = 37e9,
          .experts = 256,
          .experts_per_token = 8,
          .layers = 61,
          .hidden = 7168,
          .heads = 128,
          .kv_heads = 128,
          .head_dim = 128,
          .ffn = 2048,
          .vocab = 129'280,
          .latent_kv = 576,
          .latent_rank = 512};
}

std::vector<Model> published() {
  const std::string llama = "meta-llama config.json";
  const std::string qwen = "Qwen config.json";
  std::vector<Model> models = {
      counted(dense("llama-3-8b", llama, 32, 4096, 32, 8, 14'336, 128'256)),
      counted(dense("llama-3-70b", llama, 80, 8192, 64, 8, 28'672, 128'256)),
      counted(dense("llama-3-405b", llama, 126, 16'384, 128, 8, 53'248, 128'256)),
      counted(dense("qwen2.5-7b", qwen, 28, 3584, 28, 4, 18'944, 152'064), {.attention_bias = true}),
      counted(dense("qwen2.5-72b", qwen, 80, 8192, 64, 8, 29'568, 152'064), {.attention_bias = true}),
  };
  Model mixtral = dense("mixtral-8x7b", "mistralai config.json", 32, 4096, 32, 8, 14'336, 32'000);
  mixtral.experts = 8;
  mixtral.experts_per_token = 2;
  models.push_back(counted(mixtral));
  models.push_back(deepseek_v3());
  return models;
}

}  // namespace

void check_count(std::string_view what, double value, double most, bool may_miss) {
  if (may_miss && value == 0) return;
  if (!(value >= 1) || value > most || value != std::floor(value))
    throw Error{Exit::usage, fmt::format("{} must be a whole number from 1 to {:.0e}, not {:g}", what, most, value)};
}

double Model::positions_held(double context) const {
  const double windowed = std::min(context, window);
  return ((cached_layers() - windowed_layers) * context + windowed_layers * windowed) / cached_layers();
}

double Model::positions_seen(double prompt) const {
  const double all = prompt * (prompt + 1) / 2, short_of = std::max(0.0, prompt - window);
  const double windowed = all - short_of * (short_of + 1) / 2;
  return ((cached_layers() - windowed_layers) * all + windowed_layers * windowed) / cached_layers();
}

double Model::kv_elements_per_token() const { return cached_layers() * (latent_kv > 0 ? latent_kv : 2 * kv_heads * head_dim); }

double Model::attention_flops_per_position() const {
  return cached_layers() * heads * (latent_kv > 0 ? 2 * latent_kv + 2 * latent_rank : 4 * head_dim);
}

double Model::routed_parameters() const {
  return experts > experts_per_token ? (parameters - active_parameters) / (1 - experts_per_token / experts) : 0;
}

double Model::parameters_read(double tokens) const {
  if (experts <= experts_per_token) return parameters;
  const double untouched = std::pow(1 - experts_per_token / experts, tokens);
  return parameters - routed_parameters() * untouched;
}

void count_parameters(Model& model, const Layout& layout) {
  const double embeddings = model.vocab * model.hidden * (layout.tied_embeddings ? 1 : 2);
  double shared = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads) + 2 * model.hidden;
  if (layout.attention_bias) shared += model.head_dim * (model.heads + 2 * model.kv_heads);
  const double expert = 3 * model.hidden * model.ffn;
  const double router = model.experts > 0 ? model.hidden * model.experts : 0;
  const double all = model.experts > 0 ? model.experts : 1;
  const double active = model.experts > 0 ? model.experts_per_token : 1;
  const double dense = model.dense_layers * 3 * model.hidden * model.dense_ffn, routed = model.layers - model.dense_layers;
  const double everywhere = embeddings + model.layers * shared + routed * router + dense + model.hidden;
  model.parameters = everywhere + routed * all * expert;
  model.active_parameters = everywhere + routed * active * expert;
}

void check_model(const Model& model) {
  check_count("the number of layers", model.layers, 1e5);
  check_count("the hidden size", model.hidden, 1e7);
  check_count("the number of heads", model.heads, 1e5);
  check_count("the number of KV heads", model.kv_heads, 1e5);
  if (std::fmod(model.heads, model.kv_heads) != 0)
    throw Error{Exit::usage, fmt::format("{:g} KV heads do not divide {:g} heads evenly", model.kv_heads, model.heads)};
  if (model.head_dim != std::floor(model.head_dim))
    throw Error{Exit::usage,
                fmt::format("{:g} heads do not divide the hidden size {:g} evenly; say --head-dim where they need not",
                            model.heads, model.hidden)};
  if (model.windowed_layers + model.uncached_layers > model.layers || model.cached_layers() <= 0)
    throw Error{Exit::usage, fmt::format("of {:g} layers {:g} have a window and {:g} no cache", model.layers,
                                         model.windowed_layers, model.uncached_layers)};
  check_count("the head dimension", model.head_dim, 1e6);
  check_count("the intermediate size", model.ffn, 1e8, true);
  check_count("the vocabulary", model.vocab, 1e9, true);
  check_count("the number of experts", model.experts, 1e6, true);
  check_count("the number of experts per token", model.experts_per_token, 1e6, model.experts == 0);
  check_count("the number of parameters", model.parameters, 1e16);
  check_count("the number of active parameters", model.active_parameters, 1e16);
  if (model.experts_per_token > model.experts)
    throw Error{Exit::usage, fmt::format("a token cannot choose {:g} of {:g} experts", model.experts_per_token, model.experts)};
  if (model.active_parameters > model.parameters)
    throw Error{Exit::usage,
                fmt::format("{:g} active parameters are more than all {:g}", model.active_parameters, model.parameters)};
  if (model.routed_parameters() > model.parameters)
    throw Error{Exit::usage, fmt::format("{:g} active parameters are too few of {:g} when {:g} of {:g} experts are chosen",
                                         model.active_parameters, model.parameters, model.experts_per_token, model.experts)};
}

const std::vector<Model>& known_models() {
  static const std::vector<Model> models = published();
  return models;
}

const Model& find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const Model& model : known_models()) {
    if (model.name == base::lower(name)) return model;
    names.push_back(model.name);
  }
  const std::vector<std::string> near = base::nearest(names, base::lower(name));
  throw Error{Exit::usage,
              fmt::format("unknown model '{}'; {}; for another give --config or --layers, --hidden, --heads", name,
                          near.empty() ? "known are " + base::join(names, ", ") : "the nearest are " + base::join(near, ", "))};
}

}  // namespace aisp::knowledge
