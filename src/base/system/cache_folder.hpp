// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>

namespace aisp::base {

// What can be found out again but costs time: XDG_CACHE_HOME/aisp or HOME/.cache/aisp; empty when neither is set. `aisp clean`
// removes it.
std::filesystem::path cache_folder();

}  // namespace aisp::base
