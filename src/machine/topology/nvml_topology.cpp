// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "machine/nvml.hpp"
#include "machine/nvml_functions.hpp"

namespace aisp::machine {
namespace {

constexpr int success = 0, invalid_argument = 2, not_supported = 3;
constexpr unsigned field_link_mbytes_common = 90, field_link_mbytes = 164;  // NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, _GET_SPEED

std::string status_text(const NvmlFunctions& functions, int status) {
  if (status == not_supported) return "the driver reports no NVLink on this GPU";
  const char* text = functions.error_string != nullptr ? functions.error_string(status) : nullptr;
  return "NVML does not tell: " + (text != nullptr ? std::string{text} : "error " + std::to_string(status));
}

std::optional<std::uint64_t> field_bytes_s(const NvmlFunctions& functions, void* device, unsigned field, unsigned link) {
  NvmlFunctions::FieldValue value{};
  value.field = field;
  value.scope = link;
  if (functions.field_values == nullptr || functions.field_values(device, 1, &value) != success || value.status != success)
    return std::nullopt;
  // The documented type is unsigned int; 64-bit ones hold the same number in their lower half on the machines this runs on.
  if (value.value.as_unsigned == 0) return std::nullopt;
  return std::uint64_t{value.value.as_unsigned} * 1'000'000;
}

// nvmlNvlinkVersion_t is a list of versions, not a number: 6 stands for NVLink 4.0.
std::string version_text(unsigned version) {
  constexpr std::array versions = {"", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"};
  return version < versions.size() ? versions.at(version) : "";
}

std::string remote_name(std::optional<unsigned> type) {
  if (!type) return {};
  switch (*type) {
    case 0: return "GPU";
    case 1: return "NPU";
    case 2: return std::string{nvswitch};
    default: return {};
  }
}

// NVML writes domains with eight digits, the system with four.
std::string system_address(const std::array<char, 32>& address) {
  const std::string text = base::lower(std::string{address.begin(), std::find(address.begin(), address.end(), '\0')});
  constexpr std::size_t long_form = 16;
  return text.size() == long_form && text.starts_with("0000") ? text.substr(4) : text;
}

NvLink read_link(const NvmlFunctions& functions, void* device, unsigned link, bool active) {
  NvLink found{.link = static_cast<int>(link), .active = active};
  if (const auto version = ask<unsigned>(functions.link_version, device, link)) found.version = version_text(*version);
  if (!active) return found;
  found.bytes_s = field_bytes_s(functions, device, field_link_mbytes, link);
  if (!found.bytes_s) found.bytes_s = field_bytes_s(functions, device, field_link_mbytes_common, 0);
  found.remote = remote_name(ask<unsigned>(functions.link_remote_type, device, link));
  if (const auto pci = ask<NvmlFunctions::PciInfo>(functions.link_remote_pci, device, link))
    found.remote_pci = system_address(pci->address);
  return found;
}

}  // namespace

std::vector<NvLink> NvmlDevice::nvlinks(std::string& why_not) const {
  if (functions_->link_state == nullptr) {
    why_not = "this driver's NVML does not tell";
    return {};
  }
  constexpr unsigned most_links = 64;
  std::vector<NvLink> links;
  for (unsigned link = 0; link < most_links; ++link) {
    unsigned active = 0;
    const int status = functions_->link_state(handle_, link, &active);
    if (status == success) links.push_back(read_link(*functions_, handle_, link, active != 0));
    // Links are numbered without gaps in what NVML accepts; among those, some may not exist on this board.
    else if (why_not.empty() || status != invalid_argument) why_not = status_text(*functions_, status);
    if (status == invalid_argument) break;
  }
  if (!links.empty()) why_not.clear();
  return links;
}

std::vector<int> NvmlDevice::nearest_cpus() const {
  constexpr unsigned bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 64> words{};
  std::vector<int> cpus;
  if (functions_->cpu_affinity == nullptr ||
      functions_->cpu_affinity(handle_, static_cast<unsigned>(words.size()), words.data()) != success)
    return cpus;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (unsigned bit = 0; bit < bits; ++bit)
      if ((words.at(i) >> bit & 1) != 0) cpus.push_back(static_cast<int>(i * bits + bit));
  return cpus;
}

std::optional<int> NvmlDevice::common_ancestor(const NvmlDevice& other) const {
  const auto level = ask<unsigned>(functions_->common_ancestor, handle_, other.handle_);
  return level ? std::optional{static_cast<int>(*level)} : std::nullopt;
}

}  // namespace aisp::machine
