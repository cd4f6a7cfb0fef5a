// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "peer_gpus.hpp"

namespace aisp::ch04 {
using namespace shared;
}  // namespace aisp::ch04
