import { writeFile } from 'node:fs/promises'
import type { Log } from '../base/log.ts'

/**
 * Tells the kernel how readily it may kill this process when memory runs out: -1000 (never) to 1000. Lowering it needs
 * CAP_SYS_RESOURCE, and Services are served without it, so that a failure is only told.
 */
export async function setOomScoreAdj(
  value: number,
  log: Log,
  path = '/proc/self/oom_score_adj',
): Promise<void> {
  try {
    await writeFile(path, String(value))
  } catch (err) {
    log.info({ err, oomScoreAdj: value }, 'the kernel keeps the memory score of this process as it is')
  }
}
