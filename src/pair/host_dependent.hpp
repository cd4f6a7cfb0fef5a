// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

namespace aisp::pair {

// Whether the host has a say in the times of this pair, by its declaration alone. One that only waits for its GPU may run beside
// others on other GPUs, and its times may be compared with those of another host with the same GPU; any other runs alone on the
// machine, and only times of the same machine are comparable with its own. The host has a say where
// - the pair runs on the host, or a variant needs CPUs of its own or queues host functions;
// - samples start immediately, so that launches and other calls are part of them;
// - the bound is latency, transfer or the host: calls, PCIe, files;
// - there are several GPUs, or access between them: their links are shared;
// - memory is in the host's hands too: managed, pageable or registered.
bool host_dependent(const Pair& pair);

}  // namespace aisp::pair
