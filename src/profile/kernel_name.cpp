// SPDX-License-Identifier: Apache-2.0
#include "profile/kernel_name.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace aisp::profile {
namespace {

constexpr std::string_view anonymous = "(anonymous namespace)::";

std::string without_anonymous(std::string text) {
  for (std::size_t at = text.find(anonymous); at != std::string::npos; at = text.find(anonymous, at))
    text.erase(at, anonymous.size());
  return text;
}

bool opens(char c) { return c == '<' || c == '('; }
bool closes(char c) { return c == '>' || c == ')'; }

}  // namespace

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text{abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free};
  return status == 0 && text ? std::string{text.get()} : symbol;
}

std::string short_name(const std::string& demangled_name) {
  const std::string text = without_anonymous(demangled_name);
  int depth = 0;
  std::size_t begin = 0, end = text.size();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && c == '(' && i > begin) {
      end = i;
      break;
    }
    if (opens(c)) ++depth;
    else if (closes(c)) --depth;
    else if (depth == 0 && (c == ':' || c == ' ')) begin = i + 1;
  }
  return begin < end ? text.substr(begin, end - begin) : demangled_name;
}

}  // namespace aisp::profile
