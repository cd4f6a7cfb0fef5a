// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

namespace aisp::pair {

// Whether the host affects the times of this pair, by its declaration alone. A pair that depends only on its GPU may run at the
// same time as others on other GPUs, and its times may be compared with those of another host with the same GPU; any other is
// measured while no pair works, and only times of the same machine are comparable with its own. The host affects times if
// - the pair runs on the host, or a variant needs CPUs of its own or queues host functions;
// - samples start immediately, so that launches and other calls are part of them;
// - the bound is latency, transfer or the host: calls, PCIe, files;
// - there are several GPUs, or access between them: their links are shared;
// - the host handles memory too: managed, pageable or registered.
bool host_dependent(const Pair& pair);

}  // namespace aisp::pair
