/** Chains that the tables of every mode have. */
export const CHAIN_PREROUTING = 'nat-prerouting'
export const CHAIN_OUTPUT = 'nat-output'
export const CHAIN_POSTROUTING = 'nat-postrouting'
/** Before the nat chains of others translate sources. */
export const CHAIN_EARLY_POSTROUTING = 'early-postrouting'
/** Behind the nat chains of others, where there are ServiceCIDRs. */
export const CHAIN_LATE_PREROUTING = 'late-prerouting'
export const CHAIN_LATE_OUTPUT = 'late-output'
export const CHAIN_SERVICES = 'services'
/** Not `reject`: a word of nft's grammar, which loads no chain of that name. */
export const CHAIN_REJECT = 'refuse'
export const CHAIN_FIREWALL = 'firewall-check'
