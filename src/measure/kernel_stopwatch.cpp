// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include "measure/stopwatch.hpp"

namespace aisp::measure {

std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session&, const StopwatchOptions&) {
  throw Unsupported{"CUPTI is not available"};
}

}  // namespace aisp::measure
