import type { Config } from '../config/config.ts'
import { tuneConntrack } from '../kernel/conntrack/sysctl-files.ts'
import type { SysctlWrite, TuneOptions, TuneReport } from '../kernel/sysctl/files.ts'
import type { RecordKernel } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'

/** Brings the kernel's settings to what the configuration asks for and its mode needs. Does not reject. */
export async function tuneKernel(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  const reports = [await tuneConntrack(config.conntrack, options), await tuneMode(config, options)]
  return {
    written: reports.flatMap(({ written }) => written),
    left: reports.flatMap(({ left }) => left),
    failed: reports.flatMap(({ failed }) => failed),
  }
}

/** Only what the mode cannot do without. */
export async function tuneMode(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  return (await findMode(config.proxyMode).tune?.(config, options)) ?? NOTHING
}

/** Throws when the kernel refuses. */
export async function writeRecord(
  config: Config,
  written: readonly SysctlWrite[],
  kernel: RecordKernel,
): Promise<void> {
  await findMode(config.proxyMode).record?.(config, written, kernel)
}

const NOTHING: TuneReport = { written: [], left: [], failed: [] }
