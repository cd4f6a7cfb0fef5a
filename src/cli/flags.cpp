// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::cli {
namespace {

template <class T>
T number_of(const std::string& flag, const std::string& text, const char* what_is_right) {
  if (const auto value = base::parse_number<T>(text)) return *value;
  throw base::Error{base::Exit::usage, fmt::format("{} '{}' must be {}", flag, base::one_line(text, 100), what_is_right)};
}

template <class To>
CLI::Option* add_number_to(CLI::App& app, const std::string& flag, To& to, const std::string& help) {
  return app.add_option_function<std::string>(
      flag, [flag, &to](const std::string& text) { to = number_of<double>(flag, text, "a number"); }, help);
}

CLI::Option* repeated(CLI::Option* option) {
  return option->expected(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace

base::Color color_flag(const std::string& text) {
  if (const auto color = base::parse_color(text)) return *color;
  throw base::Error{base::Exit::usage, fmt::format("--color '{}' must be auto, always or never", text)};
}

CLI::Option* add_number(CLI::App& app, const std::string& flag, double& to, const std::string& help) {
  return add_number_to(app, flag, to, help);
}

CLI::Option* add_number(CLI::App& app, const std::string& flag, std::optional<double>& to, const std::string& help) {
  return add_number_to(app, flag, to, help);
}

CLI::Option* add_repeated(CLI::App& app, const std::string& flag, std::vector<std::string>& to, const char* type,
                          const std::string& help) {
  return repeated(app.add_option(flag, to, help)->type_name(type));
}

CLI::Option* add_numbers(CLI::App& app, const std::string& flag, std::vector<int>& to, const std::string& help) {
  return repeated(app.add_option_function<std::vector<std::string>>(
      flag,
      [flag, &to](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) to.push_back(number_of<int>(flag, text, "a whole number"));
      },
      help));
}

}  // namespace aisp::cli
