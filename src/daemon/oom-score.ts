import { writeFile } from 'node:fs/promises'
import type { Log } from '../base/log.ts'

/**
 * Sets how readily the kernel may kill this process when memory runs out: -1000 (never) to 1000. Lowering it needs
 * CAP_SYS_RESOURCE; Services are served without it, so that a failure is only logged.
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
