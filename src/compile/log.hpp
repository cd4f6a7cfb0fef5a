// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/library.hpp>

#include <string>
#include <string_view>

namespace aisp::compile {

// "what: the log's first error", and below it all of the log.
std::string failure_text(std::string_view what, std::string_view log);

// Tells updates of a library apart that have the same version number.
std::string stamp_of(const SharedLibrary& library);

}  // namespace aisp::compile
