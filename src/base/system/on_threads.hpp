// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <functional>

namespace aisp::base {

// Calls work(0) to work(count - 1), the first here and each other on a thread of its own, and returns when all have returned and
// /proc/self/task lists none of these threads any more: a joined thread stays there for a moment, where code that is measured
// could see it. Rethrows the first exception of `work`.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace aisp::base
