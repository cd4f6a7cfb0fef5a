// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/threads.hpp>

#include <memory>

namespace aisp::pair {

// Makes `workers` threads, the caller of run() counted as worker 0. Pinned: worker i stays on the i-th CPU of the process's
// affinity mask (modulo their number), the caller during run() only.
std::unique_ptr<ThreadTeam> make_thread_team(int workers, bool pinned);

}  // namespace aisp::pair
