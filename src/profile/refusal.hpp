// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp::profile {

// What the driver says as ERR_NVGPUCTRPERM and CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, and the way round it.
inline constexpr const char* counters_refused =
    "the driver lets only root read hardware counters (NVreg_RestrictProfilingToAdminUsers=0 changes that)";

}  // namespace aisp::profile
