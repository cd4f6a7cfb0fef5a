// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include "run/child/ground.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// What is asked for and where: all stages read it, none changes it.
struct Context {
  const Pair& pair;
  const Request& request;
  const Ground& ground;
};

}  // namespace aisp::run
