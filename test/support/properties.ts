import fc from 'fast-check'
import { runs } from './runs.ts'

// For properties that say no number: 100, and fewer in `npm run ok`.
fc.configureGlobal({ ...fc.readConfigureGlobal(), numRuns: runs(600) })
