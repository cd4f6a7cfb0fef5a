// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "knowledge/model.hpp"

namespace aisp::knowledge {

// The model of a HuggingFace config.json (of its text_config where the shape is in there). Parameters are counted where the
// model_type is one that count_parameters knows; elsewhere they stay 0 and the caller must have them told. `source` names the
// text in errors. Throws base::Error (usage), one line with source and field, for anything that is no such file.
// `told`: values of fields, by their usual name, that the caller gives instead of the file.
using Told = std::map<std::string, double, std::less<>>;
Model parse_model_config(std::string_view text, const std::string& source, const Told& told = {});
Model read_model_config(const std::filesystem::path& file, const Told& told = {});

}  // namespace aisp::knowledge
