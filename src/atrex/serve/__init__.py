"""`atrex serve-judge`: the judge as a long-lived service. A candidate and a problem in, unit records out."""
