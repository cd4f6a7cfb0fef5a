// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace aisp {

#ifdef __SANITIZE_ADDRESS__
constexpr bool under_address_sanitizer = true;
#else
constexpr bool under_address_sanitizer = false;
#endif

}  // namespace aisp
