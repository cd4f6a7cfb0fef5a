// SPDX-License-Identifier: Apache-2.0
#include "knowledge/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::knowledge {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string llama = R"("model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
  "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": false)";

// A whole config.json, one value replaced.
std::string with(const std::string& key, const std::string& value) {
  const std::size_t begin = llama.find('"' + key + "\": ") + key.size() + 4, end = std::min(llama.find(',', begin), llama.size());
  return "{" + llama.substr(0, begin) + value + llama.substr(end) + "}";
}

Model parsed(const std::string& fields) { return parse_model_config("{" + fields + "}", "config.json"); }

std::string refusal(const std::string& text) {
  try {
    check_model(parse_model_config(text, "config.json"));
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "accepted";
}

TEST(ModelConfig, IsTheModelItDescribes) {
  const Model model = parsed(llama);
  EXPECT_EQ(model.parameters, find_model("llama-3-8b").parameters);
  EXPECT_EQ(model.kv_elements_per_token(), find_model("llama-3-8b").kv_elements_per_token());
}

TEST(ModelConfig, OfAMixtureCountsItsExperts) {
  const Model model = parsed(R"("model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2)");
  EXPECT_EQ(model.parameters, find_model("mixtral-8x7b").parameters);
  EXPECT_EQ(model.active_parameters, find_model("mixtral-8x7b").active_parameters);
}

TEST(ModelConfig, KnowsTiedEmbeddingsBiasesAndHeadDimensions) {
  // Qwen2.5-0.5B: 494,032,768 parameters
  EXPECT_EQ(parsed(R"("model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true)")
                .parameters,
            494'032'768);
  EXPECT_EQ(parsed(llama + R"(, "head_dim": 64)").head_dim, 64);
  EXPECT_EQ(parsed(llama + R"(, "head_dim": null)").head_dim, 128);
}

TEST(ModelConfig, LeavesUncountedWhatItDoesNotKnow) {
  EXPECT_EQ(parsed(R"("model_type": "brandnew", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 9, "vocab_size": 9)")
                .parameters,
            0);
  const Model latent = parsed(llama + R"(, "kv_lora_rank": 512, "qk_rope_head_dim": 64)");
  EXPECT_EQ(latent.parameters, 0);
  EXPECT_EQ(latent.kv_elements_per_token(), 32 * 576);
}

TEST(ModelConfig, IsFoundInsideAMultimodalOne) {
  EXPECT_EQ(parsed(R"("model_type": "llava", "text_config": {)" + llama + "}").layers, 32);
}

TEST(ModelConfig, RefusesWhatIsNone) {
  EXPECT_THAT(refusal(""), AllOf(StartsWith("config.json: "), HasSubstr("not valid JSON")));
  EXPECT_THAT(refusal(std::string{"\x7f"} + "ELF\x02\x01\x00\xff\xfe"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"hidden_size\": 40"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal("[1, 2]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(refusal("{}"), HasSubstr("config.json: no num_hidden_layers"));
  EXPECT_THAT(refusal(R"({"num_hidden_layers": "32"})"), HasSubstr("num_hidden_layers: expected a number, found string"));
  EXPECT_THAT(refusal(R"({"num_hidden_layers": 1e999})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{" + llama + R"(, "num_hidden_layers": 1})"), HasSubstr("the key \"num_hidden_layers\" comes twice"));
  EXPECT_THAT(refusal(with("num_hidden_layers", "1e300")), HasSubstr("layers must be a whole number"));
  EXPECT_THAT(refusal(with("num_attention_heads", "0")), HasSubstr("heads must be a whole number"));
  EXPECT_THAT(refusal(with("num_key_value_heads", "-8")), HasSubstr("KV heads must be a whole number"));
  EXPECT_THAT(refusal(with("tie_word_embeddings", "1")), HasSubstr("expected true or false"));
  EXPECT_THAT(refusal("{" + llama + R"(, "num_experts": 4})"), HasSubstr("no num_experts_per_tok"));
  EXPECT_EQ(refusal("{" + llama + "}"), "accepted");
}

// Elements that the cache of one sequence holds, in bytes of bf16.
double cache_gb(const Model& model, double context) {
  return model.positions_held(context) * model.kv_elements_per_token() * 2 / 1e9;
}

std::string repeated(const std::string& what, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += (i > 0 ? ", " : "") + what;
  return text;
}

TEST(ModelConfig, LayersWithAWindowKeepAWindow) {
  const Model gemma = parsed(R"("text_config": {"hidden_size": 5376, "num_attention_heads": 32, "num_hidden_layers": 62,
    "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6})");
  EXPECT_NEAR(cache_gb(gemma, 131072), 11.17, 0.01);
  EXPECT_THAT(gemma.assumptions, testing::ElementsAre("52 of 62 layers keep the last 1024 positions alone"));
  EXPECT_NEAR(cache_gb(parsed(llama + R"(, "sliding_window": 4096)"), 32768), 0.537, 0.001);  // Mistral 7B v0.1
  EXPECT_NEAR(
      cache_gb(parsed(R"("num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32,
    "sliding_window": 2047)"),
               4096),
      0.805, 0.001);
  EXPECT_NEAR(
      cache_gb(parsed(R"("num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "sliding_window": 128, "layer_types": [)" +
                      repeated(R"("sliding_attention", "full_attention")", 18) + "]"),
               131072),
      4.84, 0.01);
  EXPECT_NEAR(
      cache_gb(parsed(R"("num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "attention_chunk_size": 8192, "no_rope_layers": [)" +
                      repeated("1, 1, 1, 0", 12) + "]"),
               1e6),
      50.4, 0.1);
  EXPECT_NEAR(cache_gb(parsed(llama + R"(, "sliding_window": 4096, "use_sliding_window": false)"), 32768), 4.29, 0.01) << "Qwen2";
  const Model short_of_it = parsed(llama + R"(, "sliding_window": 4096)");
  EXPECT_EQ(cache_gb(short_of_it, 1000), cache_gb(parsed(llama), 1000));
  EXPECT_EQ(short_of_it.positions_seen(3), 6);
  EXPECT_EQ(parsed(llama + R"(, "sliding_window": 2)").positions_seen(3), 5);
}

TEST(ModelConfig, LayersWithoutACacheAreNotCounted) {
  const Model qwen =
      parsed(R"("model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "num_experts": 512, "num_experts_per_tok": 10)");
  EXPECT_NEAR(cache_gb(qwen, 262144), 6.44, 0.01);
  EXPECT_EQ(qwen.kv_elements_per_token() * 2, 24576);
  EXPECT_THAT(qwen.assumptions, testing::ElementsAre(HasSubstr("36 of 48 layers have a state of one size")));
  const Model jamba = parsed(R"("num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "attn_layer_period": 8, "attn_layer_offset": 4)");
  EXPECT_NEAR(cache_gb(jamba, 262144), 4.29, 0.01);
}

TEST(ModelConfig, DenseLayersOfAMixtureHaveNoExperts) {
  const std::string mixture =
      R"("model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936)";
  EXPECT_NEAR(parsed(mixture).parameters, 30.53e9, 0.01e9);
  std::string even = "0";
  for (int layer = 2; layer < 48; layer += 2) even += ", " + std::to_string(layer);
  EXPECT_NEAR(parsed(mixture + R"(, "mlp_only_layers": [)" + even + "]").parameters, 16.9e9, 0.05e9);
  EXPECT_NEAR(parsed(mixture + R"(, "decoder_sparse_step": 2)").parameters, 16.9e9, 0.05e9);
}

TEST(ModelConfig, WeightsAreOfTheTypeThatTheFileNames) {
  const auto stored = [](const std::string& how) { return parsed(llama + R"(, "quantization_config": )" + how).stored_as; };
  EXPECT_EQ(parsed(llama).stored_as, "");
  EXPECT_EQ(stored(R"({"quant_method": "fp8", "fmt": "e4m3"})"), "fp8");
  EXPECT_EQ(stored(R"({"quant_method": "fbgemm_fp8"})"), "fp8");
  EXPECT_EQ(stored(R"({"quant_method": "mxfp4"})"), "fp4");
  EXPECT_EQ(
      stored(
          R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}})"),
      "fp8");
  EXPECT_EQ(stored(R"({"quant_method": "awq", "bits": 4})"), "int4");
  EXPECT_EQ(stored(R"({"quant_method": "bitsandbytes", "load_in_8bit": true})"), "int8");
  EXPECT_THAT(parsed(llama + R"(, "quantization_config": {"quant_method": "brandnew"})").assumptions,
              testing::ElementsAre(HasSubstr("'brandnew'")));
  for (const char* odd : {"3", "[]", R"({"bits": "4"})", R"({"config_groups": [1]})", R"({"load_in_4bit": 1})"})
    EXPECT_EQ(stored(odd), "") << odd;
}

TEST(ModelConfig, ClassesHaveNamesOfTheirOwnAndLeaveOutWhatIsUsual) {
  const Model gpt2 = parsed(R"("model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257)");
  EXPECT_EQ(gpt2.layers, 12);
  EXPECT_EQ(gpt2.kv_heads, 12);
  EXPECT_EQ(parsed(R"("n_embd": 6144, "n_head": 48, "n_layer": 40, "multi_query": true)").kv_heads, 1);
  const std::string gemma = R"({"text_config": {"hidden_size": 2560, "num_hidden_layers": 34}})";
  EXPECT_THAT(refusal(gemma), HasSubstr("where it is one that leaves out what is usual, add --heads"));
  const Model told =
      parse_model_config(gemma, "config.json", {{"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"head_dim", 256}});
  EXPECT_EQ(told.kv_elements_per_token(), 34 * 2 * 4 * 256);
  EXPECT_THAT(refusal(R"({"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": null,
    "block_configs": [{}]})"),
              HasSubstr("block_configs"));
}

TEST(ModelConfig, IsReadFromAFile) {
  const base::ScratchDirectory scratch;
  base::write_atomically(scratch.path() / "config.json", "{" + llama + "}");
  EXPECT_EQ(read_model_config(scratch.path() / "config.json").layers, 32);
  EXPECT_THROW(read_model_config(scratch.path()), base::Error);
  EXPECT_THROW(read_model_config(scratch.path() / "none"), base::Error);
}

}  // namespace
}  // namespace aisp::knowledge
