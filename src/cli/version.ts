import { buildInfo, buildText } from '../base/build-info.ts'
import type { Io } from './io.ts'

/** `raw` is for programs: the build and the runtime, a line each. */
export function printVersion(io: Io, raw = false): void {
  const build = buildInfo()
  if (!raw) {
    io.out(`kprobe ${buildText(build)}\n`)
    return
  }
  const { version, commit, date } = build
  const facts = {
    version,
    commit,
    date,
    node: process.version,
    platform: `${process.platform}/${process.arch}`,
  }
  for (const [name, value] of Object.entries(facts)) if (value !== '') io.out(`${name}: ${value}\n`)
}
