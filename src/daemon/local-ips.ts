import type { Config } from '../config/config.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { Intake } from './intake.ts'
import type { DaemonIo } from './io.ts'
import { watchLocalIps } from './open.ts'

interface IntakeIps {
  readonly intake: Intake
  /** The addresses cannot be read; the reason is in the log. */
  readonly failed: () => void
}

/** Follows this machine's addresses for the intake, if the configuration depends on them. */
export function followLocalIps(
  config: Config,
  { clock, log, openRoute }: Pick<DaemonIo, 'clock' | 'log' | 'openRoute'>,
  { intake, failed }: IntakeIps,
): LocalAddresses | undefined {
  const watch = watchLocalIps(config, clock, {
    ...(openRoute === undefined ? {} : { openTransport: openRoute }),
    changed: value => intake.takeIps(value),
    failed: err => {
      const isKnown = intake.snapshot.localIps.length > 0
      const rest = isKnown ? 'the last ones stay in use' : 'nothing is programmed until they are known'
      log.warn({ err }, `cannot read the addresses of this machine; ${rest}; retrying`)
      failed()
    },
    recovered: () => log.info('the addresses of this machine can be read again'),
  })
  if (watch === undefined) intake.ignoreIps()
  else intake.awaitIps()
  return watch
}
