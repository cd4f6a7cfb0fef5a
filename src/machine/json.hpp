// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "machine/ceilings.hpp"
#include "machine/machine.hpp"

namespace aisp::machine {

void to_json(nlohmann::json& json, const GpuProcess& process);
void from_json(const nlohmann::json& json, GpuProcess& process);
void to_json(nlohmann::json& json, const GpuCondition& condition);
void from_json(const nlohmann::json& json, GpuCondition& condition);
void to_json(nlohmann::json& json, const Gpu& gpu);
void from_json(const nlohmann::json& json, Gpu& gpu);
void to_json(nlohmann::json& json, const NumaNode& node);
void from_json(const nlohmann::json& json, NumaNode& node);
void to_json(nlohmann::json& json, const Host& host);
void from_json(const nlohmann::json& json, Host& host);
void to_json(nlohmann::json& json, const Machine& machine);
void from_json(const nlohmann::json& json, Machine& machine);
void to_json(nlohmann::json& json, const Ceilings& ceilings);
void from_json(const nlohmann::json& json, Ceilings& ceilings);

}  // namespace aisp::machine
