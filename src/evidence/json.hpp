// SPDX-License-Identifier: Apache-2.0
// The result model as JSON, in both directions. Every field is described once (json.cpp). Reading ignores fields it does not
// know, leaves out fields at their defaults, and throws base::Error naming the place of a field with the wrong type.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "evidence/result.hpp"

namespace aisp::evidence {

void to_json(nlohmann::json& json, const PairResult& result);
void from_json(const nlohmann::json& json, PairResult& result);
void to_json(nlohmann::json& json, const SuiteResult& suite);
void from_json(const nlohmann::json& json, SuiteResult& suite);

// Serializes every JSON text that leaves a process. Invalid UTF-8 (a pair may print and throw anything) becomes U+FFFD. Without
// indentation it is one line.
std::string json_text(const nlohmann::json& json, int indent = -1);

// Parses text from a file or pipe; `source` names it in errors: base::Error "SOURCE: ...", Exit::usage. Limits the depth of
// nesting.
nlohmann::json parse_json(std::string_view text, const std::string& source);

// Throws base::Error (usage) naming `place` if `document` has another `schema_version` than ours, or none.
void demand_schema_version(const nlohmann::json& document, const std::string& place);

}  // namespace aisp::evidence
