import type { Io } from './io.ts'

/** Of package.json: the bundler writes it into this expression. */
export function version(): string {
  return process.env.KPROBE_VERSION ?? 'from source'
}

/** `raw` is for programs: the version and the runtime, a line each. */
export function printVersion(io: Io, raw = false): void {
  if (!raw) io.out(`kprobe ${version()}\n`)
  else
    io.out(`version: ${version()}\nnode: ${process.version}\nplatform: ${process.platform}/${process.arch}\n`)
}
