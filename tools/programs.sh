#!/bin/sh
# What tests want and cannot bring themselves: installed where there is apt-get and we are root, named otherwise.
# It never fails: a test whose program is absent is skipped, and the run says so at its end.

# A program, and the package of Debian and Ubuntu that has it.
WANTED="redis-server:redis-server pgbouncer:pgbouncer node:nodejs curl:curl"
SECONDS_MAX=300

PATH="$PATH:/usr/sbin:/usr/local/sbin"
packages=
for one in $WANTED; do
  command -v "${one%%:*}" >/dev/null || packages="$packages ${one##*:}"
done
[ -z "$packages" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  timeout $SECONDS_MAX apt-get -qq update || echo "The lists of packages could not be renewed; trying those that are here."
  left=
  for package in $packages; do
    # One by one: a package that cannot be had keeps no other away.
    timeout $SECONDS_MAX apt-get -qq --yes --no-install-recommends install "$package" >/dev/null || left="$left $package"
  done
  packages=$left
fi
[ -z "$packages" ] || echo "Some tests will be skipped. What they want: apt-get install$packages"
exit 0
