// SPDX-License-Identifier: Apache-2.0
// The shape of a decoder-only transformer, as far as memory and arithmetic depend on it. Counts are doubles: products of them
// pass 64 bits, and every count here is exact in 53.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::knowledge {

struct Model {
  std::string name;              // "llama-3-8b"; "custom"; the file of a config.json
  std::string source;            // who says so
  double parameters = 0;         // all that must lie in memory
  double active_parameters = 0;  // those a token passes through: all of them, unless it is a mixture of experts
  double experts = 0;            // that a layer's router chooses from; 0: a dense model
  double experts_per_token = 0;
  double layers = 0;
  double hidden = 0;
  double heads = 0;
  double kv_heads = 0;
  double head_dim = 0;
  double ffn = 0;    // intermediate size, of one expert in a mixture; 0: not told
  double vocab = 0;  // 0: not told
  // Multi-head latent attention (DeepSeek) caches one compressed vector a token and layer instead of keys and values; 0: none.
  double latent_kv = 0;    // kv_lora_rank + qk_rope_head_dim
  double latent_rank = 0;  // kv_lora_rank
  // Layers that keep the last `window` positions alone, and those that keep a state of one size instead of a cache.
  double windowed_layers = 0, window = 0;
  double uncached_layers = 0;
  double dense_layers = 0, dense_ffn = 0;  // of a mixture: layers without experts
  std::string stored_as{};                 // type of the weights in the file, "fp8"; empty: it does not say
  std::vector<std::string> assumptions{};  // what of the file is not counted, a sentence each

  double cached_layers() const { return layers - uncached_layers; }
  // Positions that a layer with a cache holds of a context, on average over these layers.
  double positions_held(double context) const;
  // The same of what each token of a prompt attends to, itself included, summed up over the prompt.
  double positions_seen(double prompt) const;
  // Elements that the cache holds a token: cached layers x 2 x kv_heads x head_dim (keys and values), or cached layers x
  // latent_kv.
  double kv_elements_per_token() const;
  // FLOPs of one query position on one cached position, all heads and layers: a multiply-add for the score and one for the sum
  // of values, cached layers x heads x (2 x head_dim + 2 x head_dim). Latent attention works in the compressed space:
  // layers x heads x (2 x latent_kv + 2 x latent_rank).
  double attention_flops_per_position() const;
  // Parameters that only a chosen expert reads: active = shared + routed x experts_per_token / experts, total = shared + routed.
  double routed_parameters() const;
  // Parameters that `tokens` tokens read between them when each chooses its experts evenly and on its own:
  // shared + routed x (1 - (1 - experts_per_token / experts) ^ tokens). All of them in a dense model.
  double parameters_read(double tokens) const;
};

// Facts that counting needs beyond Model's own fields.
struct Layout {
  bool tied_embeddings = false;  // input and output embedding are one matrix
  bool attention_bias = false;   // on query, key and value, as Qwen2 has
};

// Fills parameters and active_parameters from the shape of the Llama family: vocab x hidden for each embedding; a layer's
// hidden x head_dim x (2 heads + 2 kv_heads) attention, three hidden x ffn matrices (gated MLP) for each expert, hidden x experts
// router, two norms; a last norm. Exact for Llama, Mistral, Mixtral and Qwen2.
void count_parameters(Model& model, const Layout& layout);

// Throws base::Error (usage) unless `value` is a whole number from 1 to `most`, or 0 where it may be missing.
void check_count(std::string_view what, double value, double most, bool may_miss = false);
// Throws base::Error (usage) naming the first count that cannot be: not whole, below 1, beyond what any model has, KV heads that
// do not divide heads, fewer parameters than active ones.
void check_model(const Model& model);

const std::vector<Model>& known_models();
// Throws base::Error naming the nearest.
const Model& find_model(std::string_view name);

// The model of a HuggingFace config.json (of its text_config where the shape is in there). Parameters are counted where the
// model_type is one that count_parameters knows; elsewhere they stay 0 and the caller must have them told. `source` names the
// text in errors. Throws base::Error (usage), one line with source and field, for anything that is no such file.
// `told`: values of fields, by their usual name, that the caller gives instead of the file.
using Told = std::map<std::string, double, std::less<>>;
Model parse_model_config(std::string_view text, const std::string& source, const Told& told = {});
Model read_model_config(const std::filesystem::path& file, const Told& told = {});

}  // namespace aisp::knowledge
