// SPDX-License-Identifier: Apache-2.0
#include "compile/store.hpp"

#include <fmt/format.h>
#include <aisp/device_attribute.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"

namespace aisp::compile {
namespace {

constexpr std::string_view title = "aisp compiled code 1";

// Lines of text, then the code: title, key, digest of the code, the kernel's name, milliseconds.
std::string file_text(const std::string& key, const CompiledCode& code) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", title, key, base::sha256_hex(code.bytes), code.symbol, code.compile_ms,
                     code.bytes);
}

std::optional<CompiledCode> code_in(std::string_view text, const std::string& key) {
  const auto line = [&text] {
    const std::size_t end = text.find('\n');
    const std::string_view before = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return before;
  };
  if (line() != title || line() != key) return std::nullopt;
  const std::string_view digest = line();
  CompiledCode code{.symbol = std::string{line()}, .from = CompiledCode::From::disk};
  const std::optional<double> compile_ms = base::parse_number<double>(line());
  if (!compile_ms || base::sha256_hex(text) != digest) return std::nullopt;
  code.compile_ms = *compile_ms;
  code.bytes = text;
  return code;
}

std::optional<CompiledCode> read(const std::filesystem::path& file, const std::string& key) {
  try {
    return code_in(base::read_file(file), key);
  } catch (const base::Error&) {
    return std::nullopt;  // there is none, most often
  }
}

void write(const std::filesystem::path& file, const std::string& key, const CompiledCode& code) {
  try {
    base::write_atomically(file, file_text(key, code));
  } catch (const base::Error&) {  // a cache that cannot be written costs the next run some time, nothing else
  }
}

constexpr int first_with_features_of_its_own = 90;

}  // namespace

std::string key_of(std::initializer_list<std::string_view> parts) {
  base::Sha256 hash;
  for (const std::string_view part : parts) hash.update(fmt::format("{}:", part.size())).update(part);
  return hash.hex();
}

CompiledCode Store::get(const std::string& key, const std::function<CompiledCode()>& make) {
  {
    const std::scoped_lock lock{mutex_};
    if (const auto known = kept_.find(key); known != kept_.end()) {
      CompiledCode code = known->second;
      code.from = CompiledCode::From::memory;
      return code;
    }
  }
  std::optional<CompiledCode> code = folder_.empty() ? std::nullopt : read(file(key), key);
  if (!code) {
    const auto start = std::chrono::steady_clock::now();
    code = make();
    code->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (!folder_.empty()) write(file(key), key, *code);
  }
  const std::scoped_lock lock{mutex_};
  kept_.emplace(key, *code);
  return *std::move(code);
}

std::shared_ptr<Store> common_store() {
  static const std::filesystem::path cache = base::cache_folder();
  static const auto store = std::make_shared<Store>(cache.empty() ? cache : cache / "kernels");
  return store;
}

std::string failure_text(std::string_view what, std::string_view log) {
  std::string first;
  for (const std::string& line : base::split(log, '\n')) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const bool is_error = line.find("error") != std::string::npos || line.find("fatal") != std::string::npos;
    if (first.empty() || is_error) first = line;
    if (is_error) break;
  }
  if (first.empty()) return fmt::format("{}, and gives no reason", what);
  return fmt::format("{}: {}\n{}", what, first, log);
}

std::string architecture_name(int sm) { return fmt::format("sm_{}{}", sm, sm >= first_with_features_of_its_own ? "a" : ""); }

int current_sm() {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor);
}

std::string stamp_of(const SharedLibrary& library) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(library.path(), error);
  return fmt::format("{} {}", library.file_name(), error ? 0 : bytes);
}

}  // namespace aisp::compile
