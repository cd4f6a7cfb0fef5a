// SPDX-License-Identifier: Apache-2.0
#include "knowledge/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/json.hpp"

namespace aisp::knowledge {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

constexpr std::size_t most_bytes = std::size_t{4} << 20;

// Of these count_parameters knows the layout; their configurations say whether embeddings are tied.
constexpr std::array<std::string_view, 7> counted_types = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3"};

class Config {
 public:
  Config(const json& object, std::string source) : object_{object}, source_{std::move(source)} {}

  bool has(const char* name) const {
    const auto found = object_.find(name);
    return found != object_.end() && !found->is_null();
  }
  std::optional<double> number(const char* name) const {
    if (!has(name)) return std::nullopt;
    const json& value = object_[name];
    if (!value.is_number()) wrong(name, "a number");
    return value.get<double>();
  }
  double needed(const char* name) const {
    if (const auto value = number(name)) return *value;
    throw Error{Exit::usage, fmt::format("{}: no {}; it must be the config.json of a decoder-only transformer", source_, name)};
  }
  bool flag(const char* name) const {
    if (!has(name)) return false;
    if (!object_[name].is_boolean()) wrong(name, "true or false");
    return object_[name].get<bool>();
  }
  std::string word(const char* name) const {
    if (!has(name)) return {};
    if (!object_[name].is_string()) wrong(name, "text");
    return object_[name].get<std::string>();
  }

 private:
  [[noreturn]] void wrong(const char* name, const char* expected) const {
    throw Error{Exit::usage, fmt::format("{}: {}: expected {}, found {}", source_, name, expected, object_[name].type_name())};
  }
  const json& object_;
  std::string source_;
};

void read_experts(const Config& config, Model& model) {
  for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (const auto experts = config.number(name)) model.experts = *experts;
  if (model.experts == 0) return;
  model.experts_per_token = config.needed("num_experts_per_tok");
  if (const auto ffn = config.number("moe_intermediate_size")) model.ffn = *ffn;
}

Model shape_of(const Config& config, const std::string& source) {
  Model model{.name = source, .source = source};
  model.layers = config.needed("num_hidden_layers");
  model.hidden = config.needed("hidden_size");
  model.heads = config.needed("num_attention_heads");
  model.kv_heads = config.number("num_key_value_heads").value_or(model.heads);
  model.head_dim = config.number("head_dim").value_or(model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = config.number("intermediate_size").value_or(0);
  model.vocab = config.number("vocab_size").value_or(0);
  read_experts(config, model);
  if (const auto rank = config.number("kv_lora_rank")) {
    model.latent_rank = *rank;
    model.latent_kv = *rank + config.needed("qk_rope_head_dim");
  }
  return model;
}

// A shared expert or dense layers between those of experts are not in the formula.
bool can_be_counted(const Config& config, const Model& model) {
  const std::string type = config.word("model_type");
  const bool known = std::find(counted_types.begin(), counted_types.end(), type) != counted_types.end();
  const bool plain = !config.has("n_shared_experts") && !config.has("shared_expert_intermediate_size") &&
                     !config.has("kv_lora_rank") && config.number("decoder_sparse_step").value_or(1) == 1;
  return known && plain && model.ffn > 0 && model.vocab > 0;
}

}  // namespace

Model parse_model_config(std::string_view text, const std::string& source) {
  const json whole = evidence::parse_json(text, source);
  if (!whole.is_object()) throw Error{Exit::usage, fmt::format("{}: expected an object, found {}", source, whole.type_name())};
  const auto nested = whole.find("text_config");
  const bool inside = !whole.contains("hidden_size") && nested != whole.end() && nested->is_object();
  const Config config{inside ? *nested : whole, source};
  Model model = shape_of(config, source);
  if (can_be_counted(config, model))
    count_parameters(model, {.tied_embeddings = config.flag("tie_word_embeddings"),
                             .attention_bias = config.flag("attention_bias") || config.word("model_type") == "qwen2"});
  return model;
}

Model read_model_config(const std::filesystem::path& file) {
  return parse_model_config(base::read_input(file, most_bytes), file.string());
}

}  // namespace aisp::knowledge
