// SPDX-License-Identifier: Apache-2.0
#include "knowledge/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/json.hpp"

namespace aisp::knowledge {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

constexpr std::size_t most_bytes = std::size_t{4} << 20;

// count_parameters knows the layout of these types; their configurations say whether embeddings are tied.
constexpr std::array<std::string_view, 7> counted_types = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3"};

class Config {
 public:
  Config(const json& object, std::string source, const Told& told) : object_{object}, source_{std::move(source)}, told_{told} {}

  bool has(const char* name) const {
    const auto found = object_.find(name);
    return found != object_.end() && !found->is_null();
  }
  std::optional<double> number(const char* name) const {
    if (const auto told = told_.find(name); told != told_.end()) return told->second;
    if (!has(name)) return std::nullopt;
    const json& value = object_[name];
    if (!value.is_number()) wrong(name, "a number");
    return value.get<double>();
  }
  std::optional<double> either(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto value = number(name)) return value;
    return std::nullopt;
  }
  // Classes have names of their own for a field, and leave out what is their default.
  double needed(std::initializer_list<const char*> names, std::string_view flag) const {
    const char* const usual = *names.begin();
    if (const auto told = told_.find(usual); told != told_.end()) return told->second;
    if (const auto value = either(names)) return *value;
    throw Error{Exit::usage,
                fmt::format("{}: no {}; it must be the config.json of a decoder-only transformer{}", source_, usual,
                            flag.empty() ? "" : fmt::format("; where it is one that leaves out what is usual, add {}", flag))};
  }
  [[noreturn]] void refuse(const char* why) const { throw Error{Exit::usage, fmt::format("{}: {}", source_, why)}; }
  bool is_null(const char* name) const { return object_.contains(name) && object_[name].is_null(); }
  const json& at(const char* name) const { return object_[name]; }
  std::vector<double> numbers(const char* name) const { return list<double>(name, "a list of numbers", &json::is_number); }
  std::vector<std::string> words(const char* name) const { return list<std::string>(name, "a list of words", &json::is_string); }
  bool flag(const char* name) const { return one<bool>(name, "true or false", &json::is_boolean); }
  std::string word(const char* name) const { return one<std::string>(name, "text", &json::is_string); }

 private:
  template <class Value>
  Value one(const char* name, const char* expected, bool (json::*is_one)() const) const {
    if (!has(name)) return {};
    if (!(object_[name].*is_one)()) wrong(name, expected);
    return object_[name].get<Value>();
  }
  template <class Value>
  std::vector<Value> list(const char* name, const char* expected, bool (json::*is_one)() const) const {
    std::vector<Value> values;
    if (!has(name)) return values;
    if (!object_[name].is_array()) wrong(name, "a list");
    for (const json& each : object_[name]) {
      if (!(each.*is_one)()) wrong(name, expected);
      values.push_back(each.get<Value>());
    }
    return values;
  }
  [[noreturn]] void wrong(const char* name, const char* expected) const {
    throw Error{Exit::usage, fmt::format("{}: {}: expected {}, found {}", source_, name, expected, object_[name].type_name())};
  }
  const json& object_;
  std::string source_;
  const Told& told_;
};

void read_experts(const Config& config, Model& model) {
  for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (const auto experts = config.number(name)) model.experts = *experts;
  if (model.experts == 0) return;
  model.experts_per_token = config.needed({"num_experts_per_tok", "experts_per_token"}, "--active-parameters");
  model.dense_ffn = model.ffn;
  if (const auto ffn = config.number("moe_intermediate_size")) model.ffn = *ffn;
  // A layer has experts where it is not listed and its number, from 1 on, is a multiple of the step.
  const std::vector<double> listed = config.numbers("mlp_only_layers");
  const double step = std::max(1.0, config.number("decoder_sparse_step").value_or(1));
  constexpr double most_layers = 1e5;  // check_model() refuses more
  if (model.layers > most_layers) return;
  for (double layer = 0; layer < model.layers; ++layer)
    if (std::find(listed.begin(), listed.end(), layer) != listed.end() || std::fmod(layer + 1, step) != 0) ++model.dense_layers;
}

void add_note(Model& model, std::string sentence) { model.assumptions.push_back(std::move(sentence)); }

// Layers by the words of layer_types, else by how often a full one comes.
void read_layers(const Config& config, Model& model) {
  const double window = config.number("sliding_window").value_or(config.number("attention_chunk_size").value_or(0));
  const bool unused = config.has("use_sliding_window") && !config.flag("use_sliding_window");
  const std::vector<std::string> kinds = config.words("layer_types");
  double full = model.layers, windowed = 0;
  if (!kinds.empty()) {
    full = static_cast<double>(std::count(kinds.begin(), kinds.end(), "full_attention"));
    windowed = static_cast<double>(std::count_if(kinds.begin(), kinds.end(), [](const std::string& kind) {
      return kind == "sliding_attention" || kind == "chunked_attention";
    }));
  } else if (const auto interval = config.number("full_attention_interval"); interval && *interval >= 1) {
    full = std::floor(model.layers / *interval);
  } else if (const auto period = config.number("attn_layer_period"); period && *period >= 1) {
    full = std::ceil((model.layers - config.number("attn_layer_offset").value_or(0)) / *period);
  } else if (const std::vector<double> rope = config.numbers("no_rope_layers");
             config.has("attention_chunk_size") && !rope.empty()) {
    full = static_cast<double>(std::count(rope.begin(), rope.end(), 0.0));
    windowed = model.layers - full;
  } else if (window > 0 && !unused) {
    const double pattern = config.number("sliding_window_pattern").value_or(0);
    full = pattern >= 1 ? std::floor(model.layers / pattern) : 0;
    windowed = model.layers - full;
  }
  model.window = window;
  model.windowed_layers = window > 0 && !unused ? windowed : 0;
  if (windowed > 0 && model.windowed_layers == 0) full += windowed;
  model.uncached_layers = model.layers - full - model.windowed_layers;
  if (model.windowed_layers > 0)
    add_note(model,
             fmt::format("{:g} of {:g} layers keep the last {:g} positions alone", model.windowed_layers, model.layers, window));
  if (model.uncached_layers > 0)
    add_note(model, fmt::format("{:g} of {:g} layers have a state of one size instead of a cache, which is not counted",
                                model.uncached_layers, model.layers));
}

// "fp8", "int4": what quantization_config says of the weights; empty where nothing is said that is known here.
std::string stored_type(const Config& config, Model& model) {
  if (!config.has("quantization_config")) return {};
  const json& how = config.at("quantization_config");
  const auto word = [&](const json& of, const char* name) {
    return of.is_object() && of.contains(name) && of[name].is_string() ? of[name].get<std::string>() : std::string{};
  };
  const std::string method = word(how, "quant_method");
  if (method == "fp8" || method == "fbgemm_fp8") return "fp8";
  if (method == "mxfp4") return "fp4";
  double bits = how.is_object() && how.contains("bits") && how["bits"].is_number() ? how["bits"].get<double>() : 0;
  bool is_float = false;
  if (how.is_object() && how.contains("config_groups") && how["config_groups"].is_object())
    for (const auto& [name, group] : how["config_groups"].items())
      if (group.is_object() && group.contains("weights") && group["weights"].is_object()) {
        const json& weights = group["weights"];
        if (weights.contains("num_bits") && weights["num_bits"].is_number()) bits = weights["num_bits"].get<double>();
        is_float = word(weights, "type") == "float";
      }
  const auto is_true = [&](const char* name) { return how.is_object() && how.contains(name) && how[name] == true; };
  if (is_true("load_in_4bit")) bits = 4;
  if (is_true("load_in_8bit")) bits = 8;
  if (bits == 8) return is_float ? "fp8" : "int8";
  if (bits == 4) return is_float ? "fp4" : "int4";
  add_note(model,
           fmt::format("quantization_config ('{}') is of a kind that is not known here; --dtype says what to count", method));
  return {};
}

Model shape_of(const Config& config, const std::string& source) {
  Model model{.name = source, .source = source};
  model.layers = config.needed({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, "--layers");
  model.hidden = config.needed({"hidden_size", "n_embd", "d_model"}, "--hidden");
  model.heads = config.needed({"num_attention_heads", "n_head", "n_heads"}, "--heads");
  if (config.is_null("num_key_value_heads") && config.has("block_configs"))
    config.refuse(
        "num_key_value_heads is null, and block_configs say it layer by layer, which is not read; give --layers, --hidden, "
        "--heads, --kv-heads and --parameters instead of the file");
  const bool one_kv_head = config.flag("multi_query");
  model.kv_heads = config.number("num_key_value_heads").value_or(one_kv_head ? 1 : model.heads);
  model.head_dim = config.number("head_dim").value_or(model.heads > 0 ? model.hidden / model.heads : 0);
  model.ffn = config.either({"intermediate_size", "n_inner"}).value_or(0);
  model.vocab = config.number("vocab_size").value_or(0);
  read_experts(config, model);
  if (const auto rank = config.number("kv_lora_rank")) {
    model.latent_rank = *rank;
    model.latent_kv = *rank + config.needed({"qk_rope_head_dim"}, "");
  }
  read_layers(config, model);
  return model;
}

// A shared expert is not in the formula.
bool can_be_counted(const Config& config, const Model& model) {
  const std::string type = config.word("model_type");
  const bool known = std::find(counted_types.begin(), counted_types.end(), type) != counted_types.end();
  const bool plain =
      !config.has("n_shared_experts") && !config.has("shared_expert_intermediate_size") && !config.has("kv_lora_rank");
  return known && plain && model.ffn > 0 && model.vocab > 0;
}

}  // namespace

Model parse_model_config(std::string_view text, const std::string& source, const Told& told) {
  const json whole = evidence::parse_json(text, source);
  if (!whole.is_object()) throw Error{Exit::usage, fmt::format("{}: expected an object, found {}", source, whole.type_name())};
  const auto nested = whole.find("text_config");
  const bool inside = !whole.contains("hidden_size") && !whole.contains("n_embd") && nested != whole.end() && nested->is_object();
  const Config config{inside ? *nested : whole, source, told};
  Model model = shape_of(config, source);
  model.stored_as = stored_type(Config{whole, source, told}, model);
  if (can_be_counted(config, model))
    count_parameters(model, {.tied_embeddings = config.flag("tie_word_embeddings"),
                             .attention_bias = config.flag("attention_bias") || config.word("model_type") == "qwen2"});
  return model;
}

Model read_model_config(const std::filesystem::path& file, const Told& told) {
  return parse_model_config(base::read_input(file, most_bytes), file.string(), told);
}

}  // namespace aisp::knowledge
