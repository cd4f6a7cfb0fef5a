// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "base/error.hpp"
#include "run/parent/world.hpp"

namespace aisp::suite {

// Serves the run of process 0 at `address` as process `own`: supervises its ranks of pairs, until the run ends. Returns the run's
// status. Throws base::Error, one line, if process 0 cannot be reached within `patience_s`, turns this process away or is gone.
base::Exit serve(const std::string& address, const std::string& secret, const run::Process& own, double patience_s);

}  // namespace aisp::suite
