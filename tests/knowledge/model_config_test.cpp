// SPDX-License-Identifier: Apache-2.0
#include "knowledge/model_config.hpp"

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

TEST(ModelConfig, IsReadFromAFile) {
  const base::ScratchDirectory scratch;
  base::write_atomically(scratch.path() / "config.json", "{" + llama + "}");
  EXPECT_EQ(read_model_config(scratch.path() / "config.json").layers, 32);
  EXPECT_THROW(read_model_config(scratch.path()), base::Error);
  EXPECT_THROW(read_model_config(scratch.path() / "none"), base::Error);
}

}  // namespace
}  // namespace aisp::knowledge
