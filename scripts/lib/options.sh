# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# How scripts read their options and say what was wrong. A script declares which variable each option sets, and defines usage:
#   declare -A option_table=(
#     [--jobs]=jobs          takes a value, --jobs 4 or --jobs=4, where only the latter may begin with --; the last one counts
#     [--targets]=targets+   takes a value and repeats; the values are added to an array
#     [--reset]=mode=reset   takes no value; mode becomes reset, and options that make it something else exclude this one
#     [--]=flags+            what follows -- is added to an array
#     [COMMAND]=command+)    so are the first word that is no option and all that follow it
#   read_options "$@"

program=$(basename "$0")

note() { echo "$program: $*" >&2; }

fail() {
  local status=$1
  shift
  note "$*"
  exit "$status"
}

usage_error() { fail 2 "$*; see $program --help"; }

# Locals of what follows begin with option_, because a variable of the script by the same name could not be set.
read_options() {
  local option_name option_sets option_value
  local -A option_chosen=()
  while (($#)); do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --) break ;;
      -*) ;;
      *)
        set -- COMMAND "$@"
        break
        ;;
    esac
    option_name=${1%%=*}
    option_sets=
    if [[ $option_name != -- ]]; then option_sets=${option_table[$option_name]:-}; fi
    [[ -n $option_sets ]] || usage_error "unknown option '$1'"
    if [[ $option_sets == *=* ]]; then
      [[ $1 == "$option_name" ]] || usage_error "$option_name takes no value"
      choose "$option_name" "${option_sets%%=*}" "${option_sets#*=}"
    else
      option_value=
      if [[ $1 == *=* ]]; then
        option_value=${1#*=}
      elif [[ $# -gt 1 && $2 != --* ]]; then
        option_value=$2
        shift
      fi
      [[ -n $option_value ]] || usage_error "$option_name needs a value"
      set_value "$option_sets" "$option_value"
    fi
    shift
  done
  if (($#)); then take_rest "$@"; fi
}

# choose OPTION VARIABLE VALUE: of two options that contradict each other neither may win, as --check promises to change nothing.
choose() {
  local option_earlier=${option_chosen[$2]:-$1}
  [[ ${option_table[$option_earlier]#*=} == "$3" ]] || usage_error "$option_earlier and $1 exclude each other"
  option_chosen[$2]=$1
  printf -v "$2" %s "$3"
}

# set_value VARIABLE VALUE, set_value ARRAY+ VALUE...
set_value() {
  if [[ $1 == *+ ]]; then
    local -n option_array=${1%+}
    option_array+=("${@:2}")
  else
    printf -v "$1" %s "$2"
  fi
}

# take_rest KEY WORD...
take_rest() {
  local option_sets=${option_table[$1]:-}
  shift
  if [[ -n $option_sets ]]; then
    set_value "$option_sets" "$@"
  elif (($#)); then
    usage_error "unexpected argument '$1'"
  fi
}
