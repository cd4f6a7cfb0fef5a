// SPDX-License-Identifier: Apache-2.0
// Code shared by NVRTC and nvJitLink: their target architecture, and messages about their failures.
#pragma once
#include <aisp/library.hpp>

#include <string>
#include <string_view>

namespace aisp::compile {

// "what: the log's first error", and below it all of the log.
std::string failure_text(std::string_view what, std::string_view log);

// "sm_90a" of 90: with the features of that architecture alone, where there are such.
std::string architecture_name(int sm);
int current_sm();  // compute capability of the current GPU, times ten

// Tells updates of a library apart that have the same version number.
std::string stamp_of(const SharedLibrary& library);

}  // namespace aisp::compile
