import type { Config } from '../config/config.ts'
import {
  type SysctlWrite,
  type TuneOptions,
  type TuneReport,
  tuneConntrack,
} from '../kernel/sysctl/sysctls.ts'
import type { KernelAccess } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'

/** Sets the kernel settings that the configuration and its mode need. Does not reject. */
export async function tuneKernel(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  const reports = [await tuneConntrack(config.conntrack, options), await tuneMode(config, options)]
  return {
    written: reports.flatMap(({ written }) => written),
    left: reports.flatMap(({ left }) => left),
    failed: reports.flatMap(({ failed }) => failed),
  }
}

/** Sets only the settings that the mode cannot run without. */
export async function tuneMode(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  return (await findMode(config.proxyMode).tune?.(config, options)) ?? NOTHING
}

/** Throws if the kernel rejects the record. */
export async function writeRecord(
  config: Config,
  written: readonly SysctlWrite[],
  kernel: KernelAccess,
): Promise<void> {
  await findMode(config.proxyMode).record?.(config, written, kernel)
}

const NOTHING: TuneReport = { written: [], left: [], failed: [] }
