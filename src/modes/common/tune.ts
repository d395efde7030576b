import type { SysctlLeft, TuneFailure, TuneReport } from '../../kernel/sysctl/sysctls.ts'

/** Counts a sysctl that does not exist as a failure, because the mode cannot work without it. */
export function missingFails({ written, left, failed }: TuneReport): TuneReport {
  const isMissing = ({ reason }: SysctlLeft) => reason === 'missing'
  const missing = left.filter(isMissing).map(
    ({ name, wanted: value }): TuneFailure => ({
      name,
      value,
      error: new Error('this kernel has no such sysctl in this network namespace'),
    }),
  )
  return { written, left: left.filter(each => !isMissing(each)), failed: [...failed, ...missing] }
}
