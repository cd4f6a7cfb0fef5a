// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ctime>
#include <string>

namespace aisp::base {

double monotonic_s();   // since an arbitrary point; never goes back
std::string utc_now();  // "2026-11-21T15:30:12Z"
std::string utc_text(std::time_t time);
std::string folder_timestamp();  // "20261121_153012", UTC
std::string folder_timestamp(std::time_t time);
void sleep_s(double seconds);  // ends early on a signal

}  // namespace aisp::base
