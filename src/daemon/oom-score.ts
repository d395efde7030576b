import { writeFile } from 'node:fs/promises'
import type { Log } from '../base/log.ts'

/**
 * Sets oom_score_adj of this process: -1000 (the kernel never kills it when memory runs out) to 1000. A lower value
 * needs CAP_SYS_RESOURCE. Services do not depend on it, so that a failure is only logged.
 */
export async function setOomScoreAdj(
  value: number,
  log: Log,
  path = '/proc/self/oom_score_adj',
): Promise<void> {
  try {
    await writeFile(path, String(value))
  } catch (err) {
    log.info({ err }, `cannot set oom_score_adj=${value} (needs CAP_SYS_RESOURCE); continuing`)
  }
}
